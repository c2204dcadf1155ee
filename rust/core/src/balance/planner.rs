//! A board keeps jobs, workers and the owners of items from one placement to the next.
//!
//! Changes are only recorded, which costs little. `place` then computes one new placement for all of them. The result
//! is that of the strategy for the whole problem, with the current owners as previous owners.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::balance::move_limit;
use crate::balance::moves::{self, Move};
use crate::balance::names::Names;
use crate::balance::quota::{Demand, LoadsBuilder, Quota, Share};
use crate::balance::spread;
use crate::balance::strategy::{Sticky, Strategy};
use crate::cancel::Cancel;
use crate::error::Error;
use crate::input::{check_weights, NO_OWNER};

/// The jobs that a worker can run; None for all of them, including jobs that are added later.
pub type Runs = Option<BTreeSet<String>>;

/// A worker. It keeps its number until it has left and has no items; then the number is free for another.
#[derive(Debug, Clone)]
struct Worker {
    name: String,
    weight: f64,
    /// Workers that can run the same jobs share one set.
    runs: Option<Arc<BTreeSet<String>>>,
    /// It has left, but items may still belong to it.
    gone: bool,
}

impl Worker {
    fn can_run(&self, job: &str) -> bool {
        !self.gone && self.runs.as_ref().is_none_or(|jobs| jobs.contains(job))
    }
}

#[derive(Debug, Clone)]
struct Items {
    names: Arc<Names>,
    /// The worker number of each item's owner.
    owners: Vec<u32>,
    /// How many items each worker number owns.
    held: Vec<u32>,
    /// Whether each worker number can run the job.
    able: Vec<bool>,
}

/// The moves of one placement in one job.
#[derive(Debug, Clone)]
pub struct Changes {
    /// The job.
    pub job: String,
    /// Its items at that time.
    pub names: Arc<Names>,
    /// Ascending by item. Owners are worker numbers, `NO_OWNER` for none.
    pub moves: Vec<Move>,
}

/// The moves of one placement.
#[derive(Debug, Clone, Default)]
pub struct Moves {
    /// Jobs in which something moved, in name order.
    pub jobs: Vec<Changes>,
    /// How many more items should move, but exceed the move limit.
    pub deferred: usize,
    /// The name of each worker number.
    pub workers: Vec<String>,
}

/// The state of a job at one time.
#[derive(Debug, Clone)]
pub struct View {
    /// Its items.
    pub names: Arc<Names>,
    /// Worker numbers by item, `NO_OWNER` for none.
    pub owners: Vec<u32>,
    /// Names by worker number.
    pub workers: Vec<String>,
}

/// An incremental balancer. See the module.
#[derive(Debug)]
pub struct Board {
    strategy: Sticky,
    workers: Vec<Worker>,
    /// The number of each worker that has not left.
    number: BTreeMap<String, u32>,
    jobs: BTreeMap<String, Items>,
}

impl Board {
    /// Creates an empty board. The strategy must be one that keeps previous owners.
    ///
    /// # Errors
    /// [`Error::Invalid`] for another strategy.
    pub fn new(strategy: Strategy) -> Result<Self, Error> {
        let strategy = strategy
            .sticky()
            .ok_or_else(|| Error::invalid("a board keeps what was before; use 'evenly-spread' or 'balanced'"))?;
        Ok(Self { strategy, workers: Vec::new(), number: BTreeMap::new(), jobs: BTreeMap::new() })
    }

    /// Adds a job. O(items + workers).
    ///
    /// # Errors
    /// [`Error::Invalid`] if the job already exists.
    pub fn add_job(&mut self, job: &str, names: Names) -> Result<(), Error> {
        if self.jobs.contains_key(job) {
            return Err(Error::Invalid(format!("job '{job}' is there already; add its items to it")));
        }
        let (owners, held) = (vec![NO_OWNER; names.len()], vec![0; self.workers.len()]);
        let able = self.workers.iter().map(|worker| worker.can_run(job)).collect();
        self.jobs.insert(job.to_owned(), Items { names: Arc::new(names), owners, held, able });
        Ok(())
    }

    /// Removes a job and its items.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the job does not exist.
    pub fn remove_job(&mut self, job: &str) -> Result<(), Error> {
        self.jobs.remove(job).map(|_| ()).ok_or_else(|| no_job(job))
    }

    /// Adds items to a job. They have no owner until the next placement. O(items).
    ///
    /// # Errors
    /// [`Error::Invalid`] if the job does not exist, or if an item already exists.
    pub fn add_items(&mut self, job: &str, more: &Names) -> Result<(), Error> {
        let items = self.jobs.get_mut(job).ok_or_else(|| no_job(job))?;
        let (names, old) = items.names.with(&format!("job '{job}': work item"), more)?;
        items.owners = old.iter().map(|at| at.map_or(NO_OWNER, |at| items.owners[at as usize])).collect();
        items.names = Arc::new(names);
        Ok(())
    }

    /// Removes items from a job. O(items).
    ///
    /// # Errors
    /// [`Error::Invalid`] if the job or an item does not exist.
    pub fn remove_items(&mut self, job: &str, gone: &Names) -> Result<(), Error> {
        let items = self.jobs.get_mut(job).ok_or_else(|| no_job(job))?;
        let (names, old) = items.names.without(&format!("job '{job}': work item"), gone)?;
        items.owners = old.iter().map(|at| items.owners[*at as usize]).collect();
        items.names = Arc::new(names);
        items.count_held();
        Ok(())
    }

    /// Sets the current owner of an item. O(log items).
    ///
    /// # Errors
    /// [`Error::Invalid`] if the job, the item or the worker does not exist.
    pub fn set_owner(&mut self, job: &str, item: &str, worker: &str) -> Result<(), Error> {
        let number = *self.number.get(worker).ok_or_else(|| no_worker(worker))?;
        let items = self.jobs.get_mut(job).ok_or_else(|| no_job(job))?;
        let at = items.names.find(item).ok_or_else(|| no_item(job, item))?;
        if items.owners[at] != NO_OWNER {
            items.held[items.owners[at] as usize] -= 1;
        }
        items.owners[at] = number;
        items.held[number as usize] += 1;
        Ok(())
    }

    /// Adds a worker. A worker that left and joins again before the next placement still owns its items. O(jobs).
    ///
    /// # Errors
    /// [`Error::Invalid`] if the worker already exists or the weight is invalid.
    pub fn join(&mut self, name: &str, weight: f64, runs: Runs) -> Result<(), Error> {
        check_weights(&[name], &[weight])?;
        if self.number.contains_key(name) {
            return Err(Error::Invalid(format!("worker '{name}' is there already; let it leave first, or reweigh it")));
        }
        let number = self.number_of_returning_worker(name);
        let worker =
            Worker { name: name.to_owned(), weight, runs: runs.map(|runs| self.shared_set(runs)), gone: false };
        for (job, items) in &mut self.jobs {
            items.held.resize(items.held.len().max(number + 1), 0);
            items.able.resize(items.held.len(), false);
            items.able[number] = worker.can_run(job);
        }
        self.number.insert(worker.name.clone(), number as u32);
        match self.workers.get_mut(number) {
            Some(place) => *place = worker,
            None => self.workers.push(worker),
        }
        Ok(())
    }

    /// Returns the job set of the last worker if it is equal, so that workers share one copy.
    fn shared_set(&self, runs: BTreeSet<String>) -> Arc<BTreeSet<String>> {
        let before = self.workers.last().and_then(|worker| worker.runs.as_ref());
        before.filter(|before| ***before == runs).map_or_else(|| Arc::new(runs), Arc::clone)
    }

    /// Returns the number that a worker had before it left if items still belong to it, and otherwise a free number.
    fn number_of_returning_worker(&self, name: &str) -> usize {
        let holds = |number: usize| self.jobs.values().any(|items| items.held[number] > 0);
        let gone = || (0..self.workers.len()).filter(|number| self.workers[*number].gone);
        let same = gone().find(|&number| self.workers[number].name == name && holds(number));
        same.or_else(|| gone().find(|&number| !holds(number))).unwrap_or(self.workers.len())
    }

    /// Removes a worker. The next placement assigns its items to other workers. O(jobs).
    ///
    /// # Errors
    /// [`Error::Invalid`] if the worker does not exist.
    pub fn leave(&mut self, name: &str) -> Result<(), Error> {
        let number = self.number.remove(name).ok_or_else(|| no_worker(name))? as usize;
        self.workers[number].gone = true;
        self.jobs.values_mut().for_each(|items| items.able[number] = false);
        Ok(())
    }

    /// Changes the weight of a worker.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the worker does not exist or the weight is invalid.
    pub fn reweigh(&mut self, name: &str, weight: f64) -> Result<(), Error> {
        check_weights(&[name], &[weight])?;
        let number = *self.number.get(name).ok_or_else(|| no_worker(name))?;
        self.workers[number as usize].weight = weight;
        Ok(())
    }

    /// Assigns all items again. Moves at most `limit` items away from workers that could keep them.
    ///
    /// An item whose owner cannot run it is always assigned. O(jobs * workers) and the cost of the strategy. Items are
    /// examined only in jobs where something moves.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::Cancelled`]. The board is then unchanged.
    pub fn place(&mut self, limit: Option<usize>, cancel: &Cancel<'_>) -> Result<Moves, Error> {
        let order: Vec<u32> = self.number.values().copied().collect();
        let weights: Vec<f64> = order.iter().map(|number| self.workers[*number as usize].weight).collect();
        let mut all = Vec::with_capacity(self.jobs.len());
        let placed = match self.strategy {
            Sticky::EvenlySpread => self.spread(&order, &weights, &mut all, cancel),
            Sticky::Balanced => self.balance(&order, &weights, &mut all, cancel),
        };
        let deferred = placed
            .and_then(|()| self.apply_move_limit(&mut all, limit, cancel))
            .inspect_err(|_| self.undo_moves(&all))?;
        let changes = |((job, items), moves): ((&String, &Items), _)| Changes {
            job: job.clone(),
            names: Arc::clone(&items.names),
            moves,
        };
        let jobs = self.jobs.iter().zip(all).map(changes).filter(|change| !change.moves.is_empty()).collect();
        Ok(Moves { jobs, deferred, workers: self.names() })
    }

    /// Undoes all moves. `all` has the moves of the first jobs, in job order.
    fn undo_moves(&mut self, all: &[Vec<Move>]) {
        for (items, moves) in self.jobs.values_mut().zip(all).filter(|(_, moves)| !moves.is_empty()) {
            moves.iter().for_each(|change| items.owners[change.item as usize] = change.from);
            items.count_held();
        }
    }

    fn balance(
        &mut self,
        order: &[u32],
        weights: &[f64],
        all: &mut Vec<Vec<Move>>,
        cancel: &Cancel<'_>,
    ) -> Result<(), Error> {
        let demands: Vec<Demand> = self.jobs.values().map(|items| items.demand(order, weights)).collect();
        let sizes = self.strategy.sizes(order.len(), &demands, cancel)?;
        for ((items, demand), sizes) in self.jobs.values_mut().zip(&demands).zip(&sizes) {
            cancel.report_steps((items.owners.len() + order.len()) as u64)?;
            all.push(items.apply_sizes(order, demand, sizes));
        }
        Ok(())
    }

    /// Assigns one job after another, so that the data of a job stay in the processor's cache.
    fn spread(
        &mut self,
        order: &[u32],
        weights: &[f64],
        all: &mut Vec<Vec<Move>>,
        cancel: &Cancel<'_>,
    ) -> Result<(), Error> {
        let mut builder = LoadsBuilder::new(order.len());
        let uniform = weights.windows(2).all(|pair| pair[0] == pair[1]);
        for items in self.jobs.values() {
            cancel.report_steps(2 * order.len() as u64)?;
            if uniform && !order.is_empty() && order.iter().all(|number| items.able[*number as usize]) {
                builder.add_evenly(items.owners.len() as u32 / order.len() as u32, weights[0]);
                continue;
            }
            let demand = items.demand_of_none(order, weights);
            builder.add(&demand, &Quota::new(demand.items, &demand.weights));
        }
        let mut loads = builder.build();
        for items in self.jobs.values_mut() {
            cancel.report_steps(8 * order.len() as u64 + items.owners.len() as u64)?;
            let demand = items.demand(order, weights);
            let share = Share::of(&demand);
            let seated = spread::seat_next(&demand, &share, &mut loads);
            all.push(items.apply_sizes(order, &demand, &share.sizes(&seated)));
        }
        Ok(())
    }

    /// Undoes all moves that are not among the best `limit`, and returns how many were undone.
    fn apply_move_limit(
        &mut self,
        all: &mut [Vec<Move>],
        limit: Option<usize>,
        cancel: &Cancel<'_>,
    ) -> Result<usize, Error> {
        let Some(limit) = limit else { return Ok(0) };
        let live = |items: &Items, change: &Move| change.from != NO_OWNER && items.able[change.from as usize];
        let (rank, mut steps) = (self.ranks(), Vec::new());
        for ((job, items), moves) in (0..).zip(self.jobs.values()).zip(all.iter()) {
            let free = moves.iter().filter(|change| live(items, change));
            steps.extend(free.map(|change| (job, rank[change.from as usize], rank[change.to as usize])));
        }
        let mut made = move_limit::choose(&steps, limit, cancel)?.into_iter();
        let mut deferred = 0;
        for (items, moves) in self.jobs.values_mut().zip(all) {
            moves.retain(|change| {
                let make = !live(items, change) || made.next() == Some(true);
                if !make {
                    items.undo_move(change);
                    deferred += 1;
                }
                make
            });
        }
        Ok(deferred)
    }

    /// Returns the position in name order of each worker number. If choices are equal, the first worker by name is
    /// chosen, regardless of the order in which workers joined.
    fn ranks(&self) -> Vec<u32> {
        let mut order: Vec<usize> = (0..self.workers.len()).collect();
        order.sort_unstable_by_key(|number| &self.workers[*number].name);
        let mut rank = vec![0; order.len()];
        (0..).zip(order).for_each(|(place, number)| rank[number] = place);
        rank
    }

    /// Returns the owner of an item, or None if no worker can run it or it was not assigned yet. O(log items).
    ///
    /// # Errors
    /// [`Error::Invalid`] if the job or the item does not exist.
    pub fn owner(&self, job: &str, item: &str) -> Result<Option<&str>, Error> {
        let items = self.jobs.get(job).ok_or_else(|| no_job(job))?;
        let at = items.names.find(item).ok_or_else(|| no_item(job, item))?;
        Ok(self.name(items.owners[at]))
    }

    /// Copies the state of a job, so that it can be read without the board. O(items), at the speed of memory.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the job does not exist.
    pub fn view(&self, job: &str) -> Result<View, Error> {
        let items = self.jobs.get(job).ok_or_else(|| no_job(job))?;
        Ok(View { names: Arc::clone(&items.names), owners: items.owners.clone(), workers: self.names() })
    }

    fn names(&self) -> Vec<String> {
        self.workers.iter().map(|worker| worker.name.clone()).collect()
    }

    fn name(&self, number: u32) -> Option<&str> {
        self.workers.get(number as usize).map(|worker| worker.name.as_str())
    }

    /// Returns the IDs of the jobs in ascending order.
    pub fn jobs(&self) -> impl Iterator<Item = &str> {
        self.jobs.keys().map(String::as_str)
    }

    /// Returns the names of the workers in ascending order.
    pub fn workers(&self) -> impl Iterator<Item = &str> {
        self.number.keys().map(String::as_str)
    }
}

impl Items {
    fn demand(&self, order: &[u32], weights: &[f64]) -> Demand {
        let mut demand = self.demand_of_none(order, weights);
        demand.held = demand.able.iter().map(|rank| self.held[order[*rank as usize] as usize]).collect();
        demand
    }

    /// Returns the demand of the job as if its workers owned no items.
    fn demand_of_none(&self, order: &[u32], weights: &[f64]) -> Demand {
        let mut able = Vec::with_capacity(order.len());
        able.extend((0..).zip(order).filter(|(_, number)| self.able[**number as usize]).map(|(rank, _)| rank));
        let weights = match able.len() == order.len() {
            true => weights.to_vec(),
            false => able.iter().map(|rank: &u32| weights[*rank as usize]).collect(),
        };
        Demand { items: self.owners.len() as u32, able, weights, held: Vec::new() }
    }

    /// Changes the owners so that each able worker owns as many items as `sizes` says, and returns the moves.
    fn apply_sizes(&mut self, order: &[u32], demand: &Demand, sizes: &[u32]) -> Vec<Move> {
        if sizes.is_empty() {
            return self.clear_owners();
        }
        let able: Vec<u32> = demand.able.iter().map(|rank| order[*rank as usize]).collect();
        let mut by_number = vec![0; self.held.len()];
        able.iter().zip(sizes).for_each(|(number, size)| by_number[*number as usize] = *size);
        let moves = moves::apply_sizes(&mut self.owners, &self.held, &by_number, &able);
        self.held = by_number;
        moves
    }

    /// Removes the owner of every item of a job that no worker can run, and returns the moves.
    fn clear_owners(&mut self) -> Vec<Move> {
        let owned = (0..).zip(&self.owners).filter(|(_, owner)| **owner != NO_OWNER);
        let moves = owned.map(|(item, &from)| Move { item, from, to: NO_OWNER }).collect();
        self.owners.fill(NO_OWNER);
        self.held.fill(0);
        moves
    }

    fn undo_move(&mut self, change: &Move) {
        self.owners[change.item as usize] = change.from;
        self.held[change.from as usize] += 1;
        self.held[change.to as usize] -= 1;
    }

    fn count_held(&mut self) {
        self.held.fill(0);
        let owned = self.owners.iter().filter(|owner| **owner != NO_OWNER);
        owned.for_each(|owner| self.held[*owner as usize] += 1);
    }
}

fn no_job(job: &str) -> Error {
    Error::Invalid(format!("job '{job}' is not there; add it first"))
}

fn no_worker(worker: &str) -> Error {
    Error::Invalid(format!("worker '{worker}' is not there; let it join first"))
}

fn no_item(job: &str, item: &str) -> Error {
    Error::Invalid(format!("job '{job}' has no work item '{item}'; add it first"))
}

#[cfg(test)]
mod tests;
