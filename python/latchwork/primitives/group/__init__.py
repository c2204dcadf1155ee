"""Groups: members, and numbered views that all members see in the same order.

``latchwork.primitives`` exports the public names. Begin with ``group``.
"""
