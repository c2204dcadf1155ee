//! How many items of one job each worker may own: a fixed number of items, and for some workers one more.
//!
//! The quota of a worker is `items * weight / sum of weights`. The worker always gets the whole part of it. The items
//! that remain are called *seats*. A worker gets at most one seat, and only if its quota has a fraction. All loads are
//! therefore within one item of the quota, and with equal weights within one item of each other. The strategy decides
//! which workers get the seats.

use crate::input::Job;

/// Weights are compared as integers: the largest one is this.
const WEIGHT_SCALE: f64 = 9_007_199_254_740_992.0; // 2^53
/// A quota that is nearer than this to a whole number counts as whole: 0.1, 0.2 and 0.3 of 6 items are 1, 2 and 3.
const WHOLE_WITHIN: u128 = 1_000_000_000;

/// The data of a job that decide how many items each worker gets: the number of items, the workers that can run the
/// job, and how many items each of them owned before.
///
/// `moves` decides which items these are.
#[derive(Debug, Clone, Default)]
pub struct Demand {
    /// Number of items of the job.
    pub items: u32,
    /// The workers that can run the job, ascending. Workers are numbered in name order.
    pub able: Vec<u32>,
    /// One weight per able worker, finite and greater than zero.
    pub weights: Vec<f64>,
    /// How many items of the job each able worker owned before.
    pub held: Vec<u32>,
}

impl Demand {
    /// Returns the demand of a job. O(items + workers).
    pub fn new(job: &Job<'_>) -> Self {
        let (items, held) = (job.items.len() as u32, job.held());
        Self { items, able: job.able.clone(), weights: job.weights.clone(), held }
    }
}

/// How many items of a job each worker gets, by position in `able`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quota {
    /// How many items each worker always gets: the whole part of its quota.
    pub floor: Vec<u32>,
    /// Whether each worker may get a seat, which is one more item.
    pub eligible: Vec<bool>,
    /// The number of seats. It is at most the number of eligible workers.
    pub seats: u32,
}

impl Quota {
    /// Computes the quota of `items` items for workers of these weights, which must be finite and greater than zero.
    /// O(workers).
    pub fn new(items: u32, weights: &[f64]) -> Self {
        let quota = match weights.first() {
            Some(first) if weights.iter().all(|weight| weight == first) => Self::equal(items, weights.len()),
            _ => Self::weighted(items, weights),
        };
        debug_assert!(quota.is_whole(items), "{quota:?} does not add up to {items}");
        quota
    }

    fn equal(items: u32, workers: usize) -> Self {
        let (floor, seats) = (items / workers as u32, items % workers as u32);
        Self { floor: vec![floor; workers], eligible: vec![seats > 0; workers], seats }
    }

    fn weighted(items: u32, weights: &[f64]) -> Self {
        let largest = weights.iter().fold(0.0, |a: f64, b| a.max(*b));
        let whole = |weight: f64| (weight / largest * WEIGHT_SCALE).round() as u128;
        let sum: u128 = weights.iter().map(|weight| whole(*weight)).sum();
        let mut known = Known::default();
        let share = |weight: &f64| known.get(*weight, || split(u128::from(items) * whole(*weight), sum));
        let (floor, eligible): (Vec<u32>, Vec<bool>) = weights.iter().map(share).unzip();
        let floors: u64 = floor.iter().map(|f| u64::from(*f)).sum();
        Self { floor, eligible, seats: u64::from(items).saturating_sub(floors) as u32 }
    }

    fn is_whole(&self, items: u32) -> bool {
        let open = self.eligible.iter().filter(|e| **e).count();
        let floors: u64 = self.floor.iter().map(|f| u64::from(*f)).sum();
        self.floor.is_empty() || (self.seats as usize <= open && floors + u64::from(self.seats) == u64::from(items))
    }
}

/// A cache of the shares of the last few weights: clusters have few distinct ones, and a 128-bit division is slow.
#[derive(Default)]
struct Known {
    shares: [(f64, (u32, bool)); 8],
    next: usize,
}

impl Known {
    /// Returns the share of a weight from the cache, or computes it. Weights are greater than zero, so an empty entry
    /// never matches.
    fn get(&mut self, weight: f64, share: impl FnOnce() -> (u32, bool)) -> (u32, bool) {
        if let Some((_, known)) = self.shares.iter().find(|(known, _)| *known == weight) {
            return *known;
        }
        let share = share();
        self.shares[self.next] = (weight, share);
        self.next = (self.next + 1) % self.shares.len();
        share
    }
}

/// Divides two numbers. Returns the whole part, and whether the quotient is clearly not a whole number.
fn split(numerator: u128, denominator: u128) -> (u32, bool) {
    let (whole, rest) = (numerator / denominator, numerator % denominator);
    if rest * WHOLE_WITHIN < denominator {
        (whole as u32, false)
    } else if (denominator - rest) * WHOLE_WITHIN < denominator {
        (whole as u32 + 1, false)
    } else {
        (whole as u32, true)
    }
}

/// The quota of a job, and for which workers a seat avoids a move.
#[derive(Debug, Clone)]
pub struct Share {
    /// The quota of the job.
    pub quota: Quota,
    /// By position in `able`: whether a seat lets the worker keep an item.
    pub gain: Vec<bool>,
}

impl Share {
    /// Computes the quota of a job, and for which workers a seat avoids a move. O(items + workers).
    pub fn new(job: &Job<'_>) -> Self {
        Self::of(&Demand::new(job))
    }

    /// Computes the quota for a demand, and for which workers a seat avoids a move. O(workers).
    pub fn of(demand: &Demand) -> Self {
        let quota = Quota::new(demand.items, &demand.weights);
        let spares = |at: usize| quota.eligible[at] && demand.held[at] > quota.floor[at];
        let gain = (0..demand.held.len()).map(spares).collect();
        Self { quota, gain }
    }

    /// Returns how many items each able worker gets, given which workers have a seat. O(workers).
    pub fn sizes(&self, seated: &[bool]) -> Vec<u32> {
        self.quota.floor.iter().zip(seated).map(|(floor, seated)| floor + u32::from(*seated)).collect()
    }

    /// Returns the workers that may get a seat, as positions in `able`, in name order.
    pub fn candidates(&self) -> impl Iterator<Item = u32> + '_ {
        let open = if self.quota.seats == 0 { 0 } else { self.gain.len() };
        (0..open as u32).filter(|&at| self.quota.eligible[at as usize])
    }
}

/// The number of items of each worker over all jobs, and the cost of one more item.
///
/// The cost of a worker with rate k and l items is k l^2. Workers of equal weight have rate 1. Otherwise the rate is
/// inverse to the largest weight of the worker, rounded to 1/4096 of the rate of the strongest worker.
#[derive(Debug, Clone)]
pub struct Loads {
    /// How many items each worker has, over all jobs.
    pub load: Vec<u64>,
    rate: Vec<i64>,
}

const RATE_OF_STRONGEST: f64 = 4096.0;
const GREATEST_RATE: f64 = 268_435_456.0; // 2^28: with fewer than 2^33 items, costs stay below 2^62

impl Loads {
    /// Returns the loads of the workers before any seat is assigned. O(sum of able workers).
    pub fn new(workers: usize, jobs: &[Demand], shares: &[Share]) -> Self {
        let mut bare = LoadsBuilder::new(workers);
        jobs.iter().zip(shares).for_each(|(job, share)| bare.add(job, &share.quota));
        bare.build()
    }

    /// Returns the loads of workers that own no items, given their weights. O(workers).
    pub fn empty(weights: &[f64]) -> Self {
        Self { load: vec![0; weights.len()], rate: rates(weights) }
    }

    /// Returns by how much the cost of a worker rises with one more item.
    pub fn cost_of_one_more(&self, worker: u32) -> i64 {
        (2 * self.load[worker as usize] as i64 + 1) * self.rate[worker as usize]
    }

    /// Returns by how much the cost of a worker falls with one item fewer.
    pub fn saving_of_one_fewer(&self, worker: u32) -> i64 {
        (2 * self.load[worker as usize] as i64 - 1) * self.rate[worker as usize]
    }

    /// Returns the total cost of all loads.
    pub fn cost(&self) -> i128 {
        let each = |(l, r): (&u64, &i64)| i128::from(*l) * i128::from(*l) * i128::from(*r);
        self.load.iter().zip(&self.rate).map(each).sum()
    }
}

/// Computes [`Loads`] by adding up jobs.
#[derive(Debug)]
pub struct LoadsBuilder {
    load: Vec<u64>,
    weight: Vec<f64>,
}

impl LoadsBuilder {
    /// Creates a builder for this number of workers, without jobs.
    pub fn new(workers: usize) -> Self {
        Self { load: vec![0; workers], weight: vec![0.0; workers] }
    }

    /// Adds the items that each worker always gets of a job, without seats.
    pub fn add(&mut self, job: &Demand, quota: &Quota) {
        for ((&worker, floor), &weight) in job.able.iter().zip(&quota.floor).zip(&job.weights) {
            let at = worker as usize;
            self.load[at] += u64::from(*floor);
            if weight > self.weight[at] {
                self.weight[at] = weight;
            }
        }
    }

    /// Adds a job that all workers can run with equal weights. Each worker gets `floor` items.
    pub fn add_evenly(&mut self, floor: u32, weight: f64) {
        self.load.iter_mut().for_each(|load| *load += u64::from(floor));
        self.weight.iter_mut().for_each(|most| *most = most.max(weight));
    }

    /// Returns the loads before any seat is assigned.
    pub fn build(self) -> Loads {
        Loads { rate: rates(&self.weight), load: self.load }
    }
}

fn rates(weight: &[f64]) -> Vec<i64> {
    let strongest = weight.iter().fold(0.0, |a: f64, b| a.max(*b));
    let rate = |w: &f64| (RATE_OF_STRONGEST * strongest / w).round().min(GREATEST_RATE) as i64;
    weight.iter().map(rate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    #[test]
    fn equal_weights_leave_the_remainder_as_seats() {
        for weight in [1.0, 0.1, 1e300, 5e-324] {
            let quota = Quota::new(11, &[weight; 3]);
            assert_eq!(quota, Quota { floor: vec![3; 3], eligible: vec![true; 3], seats: 2 });
        }
        assert_eq!(Quota::new(12, &[1.0; 3]).seats, 0);
    }

    #[test]
    fn decimal_weights_that_divide_evenly_leave_no_seat() {
        let quota = Quota::new(6, &[0.1, 0.2, 0.3]);
        assert_eq!((quota.floor, quota.seats), (vec![1, 2, 3], 0));
    }

    #[test]
    fn a_worker_next_to_nothing_gets_next_to_nothing() {
        let quota = Quota::new(1000, &[1.0, 1e-300]);
        assert_eq!((quota.floor, quota.seats), (vec![1000, 0], 0));
    }

    #[test]
    fn random_quotas_always_add_up() {
        let mut random = Random::new(5);
        for _ in 0..20_000 {
            let workers = 1 + random.below(9);
            let items = random.below(200) as u32;
            let weight = |random: &mut Random| 10f64.powi(random.below(26) as i32 - 13) * (1 + random.below(9)) as f64;
            let weights: Vec<f64> = (0..workers).map(|_| weight(&mut random)).collect();
            let quota = Quota::new(items, &weights);
            assert!(quota.is_whole(items), "{items} {weights:?} {quota:?}");
        }
    }

    #[test]
    fn no_workers_have_no_quota() {
        let quota = Quota::new(5, &[]);
        assert!(quota.floor.is_empty());
    }
}
