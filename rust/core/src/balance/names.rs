//! A compact list of names in one piece of memory, ascending and unique.

use std::cmp::Ordering;

use crate::error::Error;

/// Names in ascending order. Each is known by its position. Takes four bytes per name beyond the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    text: String,
    start: Vec<u32>,
}

impl Default for Names {
    fn default() -> Self {
        Self { text: String::new(), start: vec![0] }
    }
}

impl Names {
    /// Sorts names. `what` says what they name, for error messages. O(n) if they are already sorted.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a name occurs twice, for 2^32 - 1 names or more, and for more than four gigabytes of text.
    pub fn new(what: &str, mut names: Vec<&str>) -> Result<Self, Error> {
        let bytes: usize = names.iter().map(|name| name.len()).sum();
        check_size(what, names.len(), bytes, u32::MAX as usize - 1)?;
        if !names.is_sorted() {
            names.sort_unstable();
        }
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::Invalid(format!("{what} '{}' is given twice; give it once", pair[0])));
        }
        let mut made = Self { text: String::with_capacity(bytes), start: Vec::with_capacity(names.len() + 1) };
        made.start.push(0);
        names.into_iter().for_each(|name| made.push(name));
        Ok(made)
    }

    fn push(&mut self, name: &str) {
        self.text.push_str(name);
        self.start.push(self.text.len() as u32);
    }

    /// Returns the number of names.
    pub fn len(&self) -> usize {
        self.start.len() - 1
    }

    /// Returns whether there are no names.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the name at a position.
    pub fn get(&self, at: usize) -> &str {
        &self.text[self.start[at] as usize..self.start[at + 1] as usize]
    }

    /// Returns all names in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.len()).map(|at| self.get(at))
    }

    /// Returns the position of a name, or None. O(log n).
    pub fn find(&self, name: &str) -> Option<usize> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            match self.get(middle).cmp(name) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return Some(middle),
                Ordering::Greater => high = middle,
            }
        }
        None
    }

    /// Returns these names merged with others. Also returns, for each position, the position that the name had before,
    /// or None for an added name.
    ///
    /// # Errors
    /// [`Error::Invalid`] if one of the others already exists, or if there would be too many names.
    pub fn with(&self, what: &str, others: &Self) -> Result<(Self, Vec<Option<u32>>), Error> {
        check_size(what, self.len() + others.len(), self.text.len() + others.text.len(), u32::MAX as usize - 1)?;
        let (mut made, mut old) = (Self::default(), Vec::with_capacity(self.len() + others.len()));
        let (mut at, mut next) = (0, 0);
        while at < self.len() || next < others.len() {
            let order = match (at < self.len(), next < others.len()) {
                (true, true) => self.get(at).cmp(others.get(next)),
                (true, false) => Ordering::Less,
                _ => Ordering::Greater,
            };
            match order {
                Ordering::Less => {
                    made.push(self.get(at));
                    old.push(Some(at as u32));
                    at += 1;
                }
                Ordering::Greater => {
                    made.push(others.get(next));
                    old.push(None);
                    next += 1;
                }
                Ordering::Equal => {
                    return Err(Error::Invalid(format!("{what} '{}' is there already; leave it out", self.get(at))))
                }
            }
        }
        Ok((made, old))
    }

    /// Returns these names without others. Also returns, for each position, the position that the name had before.
    ///
    /// # Errors
    /// [`Error::Invalid`] if one of the others does not exist.
    pub fn without(&self, what: &str, gone: &Self) -> Result<(Self, Vec<u32>), Error> {
        if let Some(name) = gone.iter().find(|name| self.find(name).is_none()) {
            return Err(Error::Invalid(format!("{what} '{name}' is not there; leave it out")));
        }
        let (mut made, mut old) = (Self::default(), Vec::with_capacity(self.len() - gone.len()));
        let mut next = 0;
        for at in 0..self.len() {
            if next < gone.len() && gone.get(next) == self.get(at) {
                next += 1;
            } else {
                made.push(self.get(at));
                old.push(at as u32);
            }
        }
        Ok((made, old))
    }
}

/// Checks that `u32` can number the names and the bytes of their text.
fn check_size(what: &str, count: usize, bytes: usize, most: usize) -> Result<(), Error> {
    if count > most || bytes > u32::MAX as usize {
        return Err(Error::Invalid(format!("{count} {what}s of {bytes} bytes are too many for one job; split it")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Names {
        Names::new("work item", list.to_vec()).unwrap()
    }

    #[test]
    fn names_are_found_where_they_stand_in_order() {
        let names = names(&["b", "", "añ", "a"]);
        assert_eq!(names.iter().collect::<Vec<_>>(), ["", "a", "añ", "b"]);
        assert_eq!(names.iter().map(|n| names.find(n).unwrap()).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!(names.find("aa"), None);
    }

    #[test]
    fn a_name_given_twice_is_refused() {
        let error = Names::new("work item", vec!["b", "a", "b"]).unwrap_err();
        assert_eq!(error.to_string(), "work item 'b' is given twice; give it once");
    }

    #[test]
    fn more_names_than_places_are_refused() {
        assert!(check_size("work item", 10, 100, 10).is_ok());
        let error = check_size("work item", 11, 100, 10).unwrap_err();
        assert_eq!(error.to_string(), "11 work items of 100 bytes are too many for one job; split it");
    }

    #[test]
    fn joined_and_removed_names_say_where_each_was() {
        let (more, old) = names(&["b", "d"]).with("work item", &names(&["a", "c", "e"])).unwrap();
        assert_eq!(more, names(&["a", "b", "c", "d", "e"]));
        assert_eq!(old, [None, Some(0), None, Some(1), None]);
        let (fewer, old) = more.without("work item", &names(&["a", "d"])).unwrap();
        assert_eq!((fewer, old), (names(&["b", "c", "e"]), vec![1, 2, 4]));
        assert!(more.with("work item", &names(&["c"])).is_err() && more.without("work item", &names(&["x"])).is_err());
    }
}
