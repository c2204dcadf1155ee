"""What is seen of a run from inside of it: who is a member, who lives, who is lost; one picture for all on a store.

It keeps to itself how changes are folded.
"""

from latchwork.workers.observing.lookout import Lookout, Looks, lookout_of
from latchwork.workers.observing.losses import Losses, tell_loss
from latchwork.workers.observing.picture import Picture

__all__ = ["Lookout", "Looks", "Losses", "Picture", "lookout_of", "tell_loss"]
