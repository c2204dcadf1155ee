//! Jobs, workers and who has what, kept from one placement to the next.
//!
//! Changes are noted and cost little; `place` then works out one new placement for all of them. The result is the same
//! as that of the strategy on the whole problem with the present owners as the previous ones.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::balance::move_limit;
use crate::balance::moves::{self, Move};
use crate::balance::names::Names;
use crate::balance::quota::{Bare, Demand, Quota, Share};
use crate::balance::spread;
use crate::balance::strategy::Strategy;
use crate::cancel::Cancel;
use crate::error::Error;
use crate::input::{check_weights, NOBODY};

/// Which jobs a worker can run: all of them, those that come later too, or those named.
pub type Runs = Option<BTreeSet<String>>;

/// A worker keeps its number while it lives; then the number is free for another.
#[derive(Debug, Clone)]
struct Worker {
    name: String,
    weight: f64,
    /// One set for workers that can run the same: most can.
    runs: Option<Arc<BTreeSet<String>>>,
    /// Gone, but items may still be with it.
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
    /// Worker numbers, by place in `names`.
    owners: Vec<u32>,
    /// How many items each worker number has.
    held: Vec<u32>,
    /// By worker number.
    able: Vec<bool>,
}

/// The outcome for one job: what moved, by place in its names.
#[derive(Debug, Clone)]
pub struct Changes {
    /// The job.
    pub job: String,
    /// Its items at that time.
    pub names: Arc<Names>,
    /// Ascending by item; owners are worker numbers, `NOBODY` for none.
    pub moves: Vec<Move>,
}

/// The outcome of one placement.
#[derive(Debug, Clone, Default)]
pub struct Delta {
    /// Jobs in which something moved, in name order.
    pub jobs: Vec<Changes>,
    /// Items that should move too, but stay where they are for want of budget.
    pub deferred: usize,
    /// Names by worker number.
    pub workers: Vec<String>,
}

/// One job at one time.
#[derive(Debug, Clone)]
pub struct View {
    /// Its items.
    pub names: Arc<Names>,
    /// Worker numbers by item, `NOBODY` for none.
    pub owners: Vec<u32>,
    /// Names by worker number.
    pub workers: Vec<String>,
}

/// See the module. Owned by one thread at a time.
#[derive(Debug)]
pub struct Board {
    strategy: Strategy,
    workers: Vec<Worker>,
    /// The number of each worker that lives.
    number: BTreeMap<String, u32>,
    jobs: BTreeMap<String, Items>,
}

impl Board {
    /// An empty board for one of the two strategies that keep what was before.
    pub fn new(strategy: Strategy) -> Result<Self, Error> {
        match strategy {
            Strategy::EvenlySpread | Strategy::Balanced => {
                Ok(Self { strategy, workers: Vec::new(), number: BTreeMap::new(), jobs: BTreeMap::new() })
            }
            _ => Err(Error::invalid("a board keeps what was before; use 'evenly-spread' or 'balanced'")),
        }
    }

    /// Adds a job. O(items + workers).
    pub fn add_job(&mut self, job: &str, names: Names) -> Result<(), Error> {
        if self.jobs.contains_key(job) {
            return Err(Error::Invalid(format!("job '{job}' is there already; add its items to it")));
        }
        let (owners, held) = (vec![NOBODY; names.len()], vec![0; self.workers.len()]);
        let able = self.workers.iter().map(|worker| worker.can_run(job)).collect();
        self.jobs.insert(job.to_owned(), Items { names: Arc::new(names), owners, held, able });
        Ok(())
    }

    /// Removes a job and its items.
    pub fn remove_job(&mut self, job: &str) -> Result<(), Error> {
        self.jobs.remove(job).map(|_| ()).ok_or_else(|| no_job(job))
    }

    /// Adds items to a job; they have no owner until they are placed. O(items).
    pub fn add_items(&mut self, job: &str, more: &Names) -> Result<(), Error> {
        let items = self.jobs.get_mut(job).ok_or_else(|| no_job(job))?;
        let (names, old) = items.names.with(&format!("job '{job}': work item"), more)?;
        items.owners = old.iter().map(|at| at.map_or(NOBODY, |at| items.owners[at as usize])).collect();
        items.names = Arc::new(names);
        Ok(())
    }

    /// Removes items from a job. O(items).
    pub fn remove_items(&mut self, job: &str, gone: &Names) -> Result<(), Error> {
        let items = self.jobs.get_mut(job).ok_or_else(|| no_job(job))?;
        let (names, old) = items.names.without(&format!("job '{job}': work item"), gone)?;
        items.owners = old.iter().map(|at| items.owners[*at as usize]).collect();
        items.names = Arc::new(names);
        items.count();
        Ok(())
    }

    /// Says who has an item at present, without moving it; the worker must be there. O(log items).
    pub fn hold(&mut self, job: &str, item: &str, worker: &str) -> Result<(), Error> {
        let number = *self.number.get(worker).ok_or_else(|| no_worker(worker))?;
        let items = self.jobs.get_mut(job).ok_or_else(|| no_job(job))?;
        let at = items.names.find(item).ok_or_else(|| no_item(job, item))?;
        if items.owners[at] != NOBODY {
            items.held[items.owners[at] as usize] -= 1;
        }
        items.owners[at] = number;
        items.held[number as usize] += 1;
        Ok(())
    }

    /// Adds a worker. One that left and comes back before the next placement still has its items. O(jobs).
    pub fn join(&mut self, name: &str, weight: f64, runs: Runs) -> Result<(), Error> {
        check_weights(&[name], &[weight])?;
        if self.number.contains_key(name) {
            return Err(Error::Invalid(format!("worker '{name}' is there already; let it leave first, or reweigh it")));
        }
        let number = self.number_for(name);
        let worker = Worker { name: name.to_owned(), weight, runs: runs.map(|runs| self.shared(runs)), gone: false };
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

    /// The very set of the worker before, if it can run the same.
    fn shared(&self, runs: BTreeSet<String>) -> Arc<BTreeSet<String>> {
        let before = self.workers.last().and_then(|worker| worker.runs.as_ref());
        before.filter(|before| ***before == runs).map_or_else(|| Arc::new(runs), Arc::clone)
    }

    /// The number it had if items are with it still, else one that nothing is with.
    fn number_for(&self, name: &str) -> usize {
        let holds = |number: usize| self.jobs.values().any(|items| items.held[number] > 0);
        let gone = || (0..self.workers.len()).filter(|number| self.workers[*number].gone);
        let same = gone().find(|&number| self.workers[number].name == name && holds(number));
        same.or_else(|| gone().find(|&number| !holds(number))).unwrap_or(self.workers.len())
    }

    /// Removes a worker; the next placement gives its items to others. O(jobs).
    pub fn leave(&mut self, name: &str) -> Result<(), Error> {
        let number = self.number.remove(name).ok_or_else(|| no_worker(name))? as usize;
        self.workers[number].gone = true;
        self.jobs.values_mut().for_each(|items| items.able[number] = false);
        Ok(())
    }

    /// Changes a worker's weight.
    pub fn reweigh(&mut self, name: &str, weight: f64) -> Result<(), Error> {
        check_weights(&[name], &[weight])?;
        let number = *self.number.get(name).ok_or_else(|| no_worker(name))?;
        self.workers[number as usize].weight = weight;
        Ok(())
    }

    /// Places everything anew, moving at most `limit` items away from workers that are able to keep them.
    ///
    /// Items without an able owner are always placed. O(jobs * workers) and the strategy's own cost; items are only looked
    /// at in jobs where something moves, and there little.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::Cancelled`]; the board is then as it was.
    pub fn place(&mut self, limit: Option<usize>, cancel: &Cancel<'_>) -> Result<Delta, Error> {
        let order: Vec<u32> = self.number.values().copied().collect();
        let weights: Vec<f64> = order.iter().map(|number| self.workers[*number as usize].weight).collect();
        let mut all = Vec::with_capacity(self.jobs.len());
        let placed = match self.strategy {
            Strategy::EvenlySpread => self.spread(&order, &weights, &mut all, cancel),
            _ => self.balance(&order, &weights, &mut all, cancel),
        };
        let deferred =
            placed.and_then(|()| self.hold_back(&mut all, limit, cancel)).inspect_err(|_| self.undo(&all))?;
        let changes = |((job, items), moves): ((&String, &Items), _)| Changes {
            job: job.clone(),
            names: Arc::clone(&items.names),
            moves,
        };
        let jobs = self.jobs.iter().zip(all).map(changes).filter(|change| !change.moves.is_empty()).collect();
        Ok(Delta { jobs, deferred, workers: self.names() })
    }

    /// Takes back all moves, which are those of the first jobs.
    fn undo(&mut self, all: &[Vec<Move>]) {
        for (items, moves) in self.jobs.values_mut().zip(all).filter(|(_, moves)| !moves.is_empty()) {
            moves.iter().for_each(|change| items.owners[change.item as usize] = change.from);
            items.count();
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
            cancel.spend((items.owners.len() + order.len()) as u64)?;
            all.push(items.settle(order, demand, sizes));
        }
        Ok(())
    }

    /// One job after the other, so that what is known of it stays in the processor's cache.
    fn spread(
        &mut self,
        order: &[u32],
        weights: &[f64],
        all: &mut Vec<Vec<Move>>,
        cancel: &Cancel<'_>,
    ) -> Result<(), Error> {
        let mut bare = Bare::new(order.len());
        let uniform = weights.windows(2).all(|pair| pair[0] == pair[1]);
        for items in self.jobs.values() {
            cancel.spend(2 * order.len() as u64)?;
            if uniform && !order.is_empty() && order.iter().all(|number| items.able[*number as usize]) {
                bare.add_evenly(items.owners.len() as u32 / order.len() as u32, weights[0]);
                continue;
            }
            let demand = items.demand_of_none(order, weights);
            bare.add(&demand, &Quota::new(demand.items, &demand.weights));
        }
        let mut loads = bare.loads();
        for items in self.jobs.values_mut() {
            cancel.spend(8 * order.len() as u64 + items.owners.len() as u64)?;
            let demand = items.demand(order, weights);
            let share = Share::of(&demand);
            let seated = spread::seat_next(&demand, &share, &mut loads);
            all.push(items.settle(order, &demand, &share.sizes(&seated)));
        }
        Ok(())
    }

    /// Takes back the moves that are not among the best; returns how many those are.
    fn hold_back(&mut self, all: &mut [Vec<Move>], limit: Option<usize>, cancel: &Cancel<'_>) -> Result<usize, Error> {
        let Some(limit) = limit else { return Ok(0) };
        let live = |items: &Items, change: &Move| change.from != NOBODY && items.able[change.from as usize];
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
                    items.take_back(change);
                    deferred += 1;
                }
                make
            });
        }
        Ok(deferred)
    }

    /// The place of each worker number in name order: of equal choices the first by name is made, whoever joined first.
    fn ranks(&self) -> Vec<u32> {
        let mut order: Vec<usize> = (0..self.workers.len()).collect();
        order.sort_unstable_by_key(|number| &self.workers[*number].name);
        let mut rank = vec![0; order.len()];
        (0..).zip(order).for_each(|(place, number)| rank[number] = place);
        rank
    }

    /// The owner of an item: none if nobody can run it, or if it was not placed yet. O(log items).
    pub fn owner(&self, job: &str, item: &str) -> Result<Option<&str>, Error> {
        let items = self.jobs.get(job).ok_or_else(|| no_job(job))?;
        let at = items.names.find(item).ok_or_else(|| no_item(job, item))?;
        Ok(self.name(items.owners[at]))
    }

    /// A job's items in name order, each with its owner.
    pub fn owners(&self, job: &str) -> Result<impl Iterator<Item = (&str, Option<&str>)>, Error> {
        let items = self.jobs.get(job).ok_or_else(|| no_job(job))?;
        Ok(items.names.iter().zip(items.owners.iter().map(|owner| self.name(*owner))))
    }

    /// A job's present state, to be read without the board. O(items), at the speed of memory.
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

    /// Ids of the jobs, ascending.
    pub fn jobs(&self) -> impl Iterator<Item = &str> {
        self.jobs.keys().map(String::as_str)
    }

    /// Workers that are there, in name order.
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

    /// The demand, but for what was held.
    fn demand_of_none(&self, order: &[u32], weights: &[f64]) -> Demand {
        let mut able = Vec::with_capacity(order.len());
        able.extend((0..).zip(order).filter(|(_, number)| self.able[**number as usize]).map(|(rank, _)| rank));
        let weights = match able.len() == order.len() {
            true => weights.to_vec(),
            false => able.iter().map(|rank: &u32| weights[*rank as usize]).collect(),
        };
        Demand { items: self.owners.len() as u32, able, weights, held: Vec::new() }
    }

    /// Gives each able worker as many items as `sizes` says.
    fn settle(&mut self, order: &[u32], demand: &Demand, sizes: &[u32]) -> Vec<Move> {
        if sizes.is_empty() {
            return self.drop_all();
        }
        let able: Vec<u32> = demand.able.iter().map(|rank| order[*rank as usize]).collect();
        let mut by_number = vec![0; self.held.len()];
        able.iter().zip(sizes).for_each(|(number, size)| by_number[*number as usize] = *size);
        let moves = moves::settle(&mut self.owners, &self.held, &by_number, &able);
        self.held = by_number;
        moves
    }

    /// Nobody can run the job: its items lose their owners.
    fn drop_all(&mut self) -> Vec<Move> {
        let owned = (0..).zip(&self.owners).filter(|(_, owner)| **owner != NOBODY);
        let moves = owned.map(|(item, &from)| Move { item, from, to: NOBODY }).collect();
        self.owners.fill(NOBODY);
        self.held.fill(0);
        moves
    }

    fn take_back(&mut self, change: &Move) {
        self.owners[change.item as usize] = change.from;
        self.held[change.from as usize] += 1;
        self.held[change.to as usize] -= 1;
    }

    fn count(&mut self) {
        self.held.fill(0);
        let owned = self.owners.iter().filter(|owner| **owner != NOBODY);
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
