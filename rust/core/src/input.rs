//! The input of a placement: jobs, their items in name order, and the workers that can run them.

use crate::error::Error;

/// No owner: the previous owner is unknown, has left or cannot run the job any more; or no worker can run the job.
pub const NO_OWNER: u32 = u32::MAX;

/// A job to place. Positions (`u32`) index `able`, not the workers of the whole problem.
#[derive(Debug, Clone, Default)]
pub struct Job<'a> {
    /// The job's id, the first half of each key that is hashed.
    pub id: &'a str,
    /// The work items, ascending and unique.
    pub items: Vec<&'a str>,
    /// Indices of the workers that can run it, ascending; the worker list itself is in name order.
    pub able: Vec<u32>,
    /// One weight per able worker, finite and greater than zero.
    pub weights: Vec<f64>,
    /// Per item the position in `able` of its previous owner, or `NO_OWNER`.
    pub previous: Vec<u32>,
}

impl Job<'_> {
    /// Returns how many items each able worker owned before. O(items).
    pub fn held(&self) -> Vec<u32> {
        let mut held = vec![0; self.able.len()];
        for &position in self.previous.iter().filter(|&&p| p != NO_OWNER) {
            held[position as usize] += 1;
        }
        held
    }

    /// Writes the key of an item, `job:item`, into `buffer`.
    pub fn key(&self, item: &str, buffer: &mut String) {
        buffer.clear();
        buffer.push_str(self.id);
        buffer.push(':');
        buffer.push_str(item);
    }
}

/// Checks that weights are finite and positive.
///
/// # Errors
/// [`Error::Invalid`], which names the first worker with a bad weight, or says that the number of weights is wrong.
pub fn check_weights<S: AsRef<str>>(workers: &[S], weights: &[f64]) -> Result<(), Error> {
    if workers.len() != weights.len() {
        return Err(Error::Invalid(format!(
            "{} weights were given for {} workers; give one weight per worker",
            weights.len(),
            workers.len()
        )));
    }
    match weights.iter().position(|w| !(w.is_finite() && *w > 0.0)) {
        None => Ok(()),
        Some(at) => Err(Error::Invalid(format!(
            "worker '{}' has weight {}; a weight must be a finite number greater than 0",
            workers[at].as_ref(),
            weights[at]
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_counts_only_owners_that_are_still_able() {
        let job = Job { able: vec![4, 7], previous: vec![1, NO_OWNER, 1, 0], ..Job::default() };
        assert_eq!(job.held(), [1, 2]);
    }

    #[test]
    fn bad_weights_are_named() {
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let error = check_weights(&["a", "b"], &[1.0, bad]).unwrap_err();
            assert!(error.to_string().contains("worker 'b'"), "{error}");
        }
        assert!(check_weights(&["a"], &[]).is_err());
        assert!(check_weights(&["a"], &[0.5]).is_ok());
    }
}
