"""The contract of a store, call by call.

Every test runs on one or two stores of a fresh root. A test is skipped only if a declared capability says so.
"""
