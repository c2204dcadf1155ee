//! Equalizes the loads: moves seats along chains of jobs until no chain lowers the sum of squared loads.
//!
//! A chain leads from a worker, over a job in which it has a seat, to a worker without a seat of that job, and so on.
//! Moving a seat along the chain lowers the sum if the first worker saves more than the last one pays. The workers that
//! would save most come first. When they reach no cheaper worker, they and all workers that they reach get that saving
//! as their fixed *price*: no chain from them or to them lowers the sum. `gains` relies on two properties of the
//! prices:
//!
//! - A worker with price p saves at most p by giving up a seat, and pays at least p for another seat.
//! - Within a job, no worker without a seat has a lower price than a worker with a seat.

use super::graph::Graph;
use crate::balance::quota::Loads;
use crate::cancel::Cancel;
use crate::error::Error;

/// The price of a worker that has no seat and can get none.
pub const NO_PRICE: i64 = i64::MIN;

const UNSEEN: u32 = u32::MAX;

/// Moves seats until the sum of squared loads is minimal, and returns the price of each worker. O(loads * seats *
/// rounds); after `start` there are few different loads and few rounds.
pub fn equalize(graph: &mut Graph, loads: &mut Loads, cancel: &Cancel<'_>) -> Result<Vec<i64>, Error> {
    let mut search = Search::new(graph, loads, cancel);
    while let Some(top) = search.highest_saving() {
        search.move_seats_from(top)?;
    }
    Ok(search.price)
}

struct Search<'g> {
    graph: &'g mut Graph,
    loads: &'g mut Loads,
    price: Vec<i64>,
    given: Vec<u32>,
    worker_depth: Vec<u32>,
    job_depth: Vec<u32>,
    /// Whether all free seats of a job belong to workers with a fixed price: no chain leads through it any more.
    closed: Vec<bool>,
    worker_next: Vec<usize>,
    job_next: Vec<usize>,
    cancel: &'g Cancel<'g>,
}

impl<'g> Search<'g> {
    fn new(graph: &'g mut Graph, loads: &'g mut Loads, cancel: &'g Cancel<'g>) -> Self {
        let (workers, jobs) = (graph.workers(), graph.jobs());
        let mut given = vec![0; workers];
        let taken = graph.worker.iter().zip(&graph.taken).filter(|(_, taken)| **taken);
        taken.for_each(|(worker, _)| given[*worker as usize] += 1);
        Self {
            graph,
            loads,
            price: vec![NO_PRICE; workers],
            given,
            worker_depth: vec![UNSEEN; workers],
            job_depth: vec![UNSEEN; jobs],
            closed: vec![false; jobs],
            worker_next: vec![0; workers],
            job_next: vec![0; jobs],
            cancel,
        }
    }

    fn is_open(&self, worker: u32) -> bool {
        self.price[worker as usize] == NO_PRICE
    }

    fn can_give(&self, worker: u32) -> bool {
        self.is_open(worker) && self.given[worker as usize] > 0
    }

    /// Returns the highest saving that a worker without a fixed price would have if it gave up a seat.
    fn highest_saving(&self) -> Option<i64> {
        let givers = (0..self.graph.workers() as u32).filter(|&worker| self.can_give(worker));
        givers.map(|worker| self.loads.saving_of_one_fewer(worker)).max()
    }

    /// Moves seats away from the workers that would save `top`. Fixes the price of the workers that must keep their
    /// seats.
    fn move_seats_from(&mut self, top: i64) -> Result<(), Error> {
        loop {
            let is_source = |w: &u32| self.can_give(*w) && self.loads.saving_of_one_fewer(*w) == top;
            let sources: Vec<u32> = (0..self.graph.workers() as u32).filter(is_source).collect();
            if sources.is_empty() {
                return Ok(());
            }
            if !self.build_layers(&sources, top)? {
                self.fix_price(top);
                return Ok(());
            }
            for source in sources {
                while self.can_give(source)
                    && self.loads.saving_of_one_fewer(source) == top
                    && self.send(source, top)?
                {}
            }
        }
    }

    fn fix_price(&mut self, top: i64) {
        for worker in 0..self.price.len() {
            if self.worker_depth[worker] != UNSEEN {
                self.price[worker] = top;
            }
        }
        for (closed, depth) in self.closed.iter_mut().zip(&self.job_depth) {
            *closed |= *depth != UNSEEN;
        }
    }

    /// Numbers workers and jobs by their distance from the sources, up to the first layer with a worker that is cheaper
    /// than `top`. Returns whether there is one.
    fn build_layers(&mut self, sources: &[u32], top: i64) -> Result<bool, Error> {
        self.reset();
        let mut layer = sources.to_vec();
        layer.iter().for_each(|&source| self.worker_depth[source as usize] = 0);
        let mut depth = 0;
        while !layer.is_empty() {
            depth += 1;
            let mut beyond = Vec::new();
            for worker in layer {
                self.add_receivers(worker, depth, &mut beyond)?;
            }
            if beyond.iter().any(|&worker| self.loads.cost_of_one_more(worker) < top) {
                return Ok(true);
            }
            layer = beyond;
        }
        Ok(false)
    }

    fn reset(&mut self) {
        self.worker_depth.fill(UNSEEN);
        self.job_depth.fill(UNSEEN);
        for worker in 0..self.worker_next.len() {
            self.worker_next[worker] = self.graph.of_worker(worker as u32).start;
        }
        for job in 0..self.job_next.len() {
            self.job_next[job] = self.graph.of_job(job as u32).start;
        }
    }

    /// Adds to a layer the workers to which a worker could give a seat, unless an earlier layer has them.
    fn add_receivers(&mut self, worker: u32, depth: u32, beyond: &mut Vec<u32>) -> Result<(), Error> {
        self.cancel.report_steps(self.graph.of_worker(worker).len() as u64)?;
        for place in self.graph.of_worker(worker) {
            let seat = self.graph.seat_at(place);
            let job = self.graph.job[seat];
            if !self.graph.taken[seat] || self.job_depth[job as usize] != UNSEEN || self.closed[job as usize] {
                continue;
            }
            self.job_depth[job as usize] = depth;
            self.cancel.report_steps(2 * self.graph.of_job(job).len() as u64)?;
            for free in self.graph.of_job(job) {
                let next = self.graph.worker[free];
                if !self.graph.taken[free] && self.worker_depth[next as usize] == UNSEEN && self.is_open(next) {
                    self.worker_depth[next as usize] = depth;
                    beyond.push(next);
                }
            }
        }
        Ok(())
    }

    /// Moves a seat from a source down the layers to a cheaper worker. Returns false if there is no path.
    fn send(&mut self, source: u32, top: i64) -> Result<bool, Error> {
        let mut path: Vec<(usize, usize)> = Vec::new();
        let mut at = source;
        while path.is_empty() || self.loads.cost_of_one_more(at) >= top {
            self.cancel.report_steps(16)?;
            match self.next_transfer(at) {
                Some((given, got)) => {
                    path.push((given, got));
                    at = self.graph.worker[got];
                }
                None => {
                    self.worker_depth[at as usize] = UNSEEN;
                    let Some((given, _)) = path.pop() else { return Ok(false) };
                    at = self.graph.worker[given];
                }
            }
        }
        for (given, got) in path {
            self.graph.taken[given] = false;
            self.graph.taken[got] = true;
        }
        self.shift(source, at);
        Ok(true)
    }

    fn shift(&mut self, from: u32, to: u32) {
        self.loads.load[from as usize] -= 1;
        self.loads.load[to as usize] += 1;
        self.given[from as usize] -= 1;
        self.given[to as usize] += 1;
    }

    /// Returns the next pair of seats that leads one layer down: the one that the worker gives up, and the one that the
    /// other worker takes.
    fn next_transfer(&mut self, worker: u32) -> Option<(usize, usize)> {
        let below = self.worker_depth[worker as usize].checked_add(1)?;
        let end = self.graph.of_worker(worker).end;
        while self.worker_next[worker as usize] < end {
            let seat = self.graph.seat_at(self.worker_next[worker as usize]);
            let job = self.graph.job[seat];
            if self.graph.taken[seat] && self.job_depth[job as usize] == below {
                if let Some(free) = self.free_seat(job, below) {
                    return Some((seat, free));
                }
            }
            self.worker_next[worker as usize] += 1;
        }
        None
    }

    fn free_seat(&mut self, job: u32, depth: u32) -> Option<usize> {
        let end = self.graph.of_job(job).end;
        while self.job_next[job as usize] < end {
            let seat = self.job_next[job as usize];
            if !self.graph.taken[seat] && self.worker_depth[self.graph.worker[seat] as usize] == depth {
                return Some(seat);
            }
            self.job_next[job as usize] += 1;
        }
        None
    }
}
