//! Computes how many replicas each worker gets, and by how much that may vary without a higher cost.
//!
//! A zone always gets `base` replicas of each item. An open zone also gets at most one *extra* replica of each item.
//! Replicas are assigned one at a time, each to the worker for which it costs least: first the base of each zone, then
//! the extras. The limits (one replica of an item per worker, the totals of the zones) are nested and the costs are
//! convex, so the result is optimal.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{Replicas, Spread};
use crate::balance::quota;
use crate::cancel::Cancel;
use crate::error::Error;

/// The range of loads that a worker may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    pub least: u32,
    pub most: u32,
}

/// The optimal loads of the workers.
#[derive(Debug)]
pub struct Loads {
    /// The range of loads of each worker.
    pub workers: Vec<Range>,
    /// The total of each zone, and whether it may change together with the totals of other such zones.
    pub zones: Vec<(u64, bool)>,
}

impl Loads {
    pub fn new(problem: &Replicas, spread: &Spread, cancel: &Cancel<'_>) -> Result<Self, Error> {
        let mut fill = Fill::new(problem, spread);
        for zone in 0..spread.base.len() {
            let certain = u64::from(fill.items) * u64::from(spread.base[zone]);
            for _ in 0..certain {
                cancel.report_steps(8)?;
                fill.add_replica(zone);
            }
        }
        for _ in 0..u64::from(fill.items) * u64::from(spread.extras) {
            cancel.report_steps(8 + spread.base.len() as u64)?;
            let zone = fill.cheapest().expect("extras fit into the open zones");
            fill.add_replica(zone);
            fill.extra[zone] += 1;
        }
        Ok(fill.ranges())
    }
}

/// Assigns replicas to workers one at a time.
struct Fill<'p> {
    problem: &'p Replicas,
    spread: &'p Spread,
    items: u32,
    loads: quota::Loads,
    /// The workers of each zone that can get more replicas, by the cost of one more.
    queues: Vec<BinaryHeap<Reverse<(i64, u32)>>>,
    /// The number of extra replicas of each zone so far.
    extra: Vec<u32>,
}

impl<'p> Fill<'p> {
    fn new(problem: &'p Replicas, spread: &'p Spread) -> Self {
        let (items, zones) = (problem.previous.len() as u32, spread.base.len());
        let loads = quota::Loads::empty(&problem.weights);
        let mut queues = vec![BinaryHeap::new(); zones];
        if items > 0 {
            for (worker, zone) in (0..).zip(&problem.zone) {
                queues[*zone as usize].push(Reverse((loads.cost_of_one_more(worker), worker)));
            }
        }
        Self { problem, spread, items, loads, queues, extra: vec![0; zones] }
    }

    /// Assigns one more replica to the worker of a zone for which it costs least.
    fn add_replica(&mut self, zone: usize) {
        let Reverse((_, worker)) = self.queues[zone].pop().expect("the zone has room for its share of each item");
        self.loads.load[worker as usize] += 1;
        if self.loads.load[worker as usize] < u64::from(self.items) {
            self.queues[zone].push(Reverse((self.loads.cost_of_one_more(worker), worker)));
        }
    }

    fn may_gain(&self, zone: usize) -> bool {
        self.spread.open[zone] && self.extra[zone] < self.items
    }

    /// Returns the cost of one more replica in a zone, or None if no worker of the zone can get one.
    fn price(&self, zone: usize) -> Option<i64> {
        self.queues[zone].peek().map(|Reverse((cost, _))| *cost)
    }

    fn cheapest(&self) -> Option<usize> {
        let zones = (0..self.queues.len()).filter(|zone| self.may_gain(*zone));
        zones.min_by_key(|zone| (self.price(*zone).unwrap_or(i64::MAX), *zone))
    }

    /// Returns, for each zone, the most that one of its workers would save with one replica fewer.
    fn savings(&self) -> Vec<Option<i64>> {
        let mut most = vec![None; self.queues.len()];
        for (worker, &zone) in (0..).zip(&self.problem.zone) {
            if self.loads.load[worker as usize] > 0 {
                most[zone as usize] = most[zone as usize].max(Some(self.loads.saving_of_one_fewer(worker)));
            }
        }
        most
    }

    /// Returns the range of loads that cost the same. A replica can move between two workers at no cost if the first
    /// saves what the second pays: within a zone, or from a zone with extras to a zone that can get more.
    fn ranges(&self) -> Loads {
        let zones = || 0..self.queues.len();
        let saves = self.savings();
        let gives = |zone: &usize| self.spread.open[*zone] && self.extra[*zone] > 0;
        let highest_saving = zones().filter(gives).filter_map(|zone| saves[zone]).max();
        let cheapest = self.cheapest().and_then(|zone| self.price(zone));
        let common = highest_saving.filter(|price| Some(*price) == cheapest);
        let varies = |zone: usize| {
            let loses = gives(&zone) && saves[zone] == common;
            common.is_some() && (loses || self.may_gain(zone) && self.price(zone) == common)
        };
        let price = |zone: usize| match varies(zone) {
            true => common,
            false => saves[zone].filter(|price| Some(*price) == self.price(zone)),
        };
        let prices: Vec<Option<i64>> = zones().map(price).collect();
        let workers = (0..).zip(&self.problem.zone).map(|(worker, zone)| self.range(worker, prices[*zone as usize]));
        let total = |zone: usize| {
            let base = u64::from(self.items) * u64::from(self.spread.base[zone]);
            (base + u64::from(self.extra[zone]), varies(zone))
        };
        Loads { workers: workers.collect(), zones: zones().map(total).collect() }
    }

    fn range(&self, worker: u32, price: Option<i64>) -> Range {
        let load = self.loads.load[worker as usize] as u32;
        let less = load > 0 && Some(self.loads.saving_of_one_fewer(worker)) == price;
        let more = load < self.items && Some(self.loads.cost_of_one_more(worker)) == price;
        Range { least: load - u32::from(less), most: load + u32::from(more) }
    }
}
