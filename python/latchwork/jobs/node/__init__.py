"""A node of the cluster: it joins, registers its jobs and pools, works, manages when elected, leaves.

Only the node and what it says of itself is exported.
"""
