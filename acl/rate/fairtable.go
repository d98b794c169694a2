package rate

import (
	"maps"
	"slices"
)

// Entry is an entry of a bounded table that strangers share.
type Entry[K comparable] struct {
	Key          K
	Sources      []Source // the sources to which the entry is charged
	GivesWayLast bool     // other entries of equally loaded sources are displaced first
}

// FairTable records which sources (addresses, networks and the like) hold the entries of a full table, so that a
// newcomer can displace one of them (AM-42). The load of a source is its number of entries in proportion to its width.
// The newcomer displaces an entry of the source with the largest load, unless the newcomer's own source would then
// have at least that load. All entries without a source are charged to one source of the largest width. A FairTable is
// not safe for concurrent use.
type FairTable[K comparable] struct {
	entries []Entry[K]
	held    map[string]int // number of entries, by Source.Key
}

// FairTableOf returns a table of the entries of m, added in the order of compare. sources returns the sources of an
// entry, or false to leave the entry out.
func FairTableOf[K comparable, V any](m map[K]V, compare func(a, b V) int, sources func(V) ([]Source, bool)) *FairTable[K] {
	t := new(FairTable[K])
	for _, key := range slices.SortedFunc(maps.Keys(m), func(a, b K) int { return compare(m[a], m[b]) }) {
		if from, ok := sources(m[key]); ok {
			t.Add(Entry[K]{Key: key, Sources: from})
		}
	}
	return t
}

// Len returns the number of entries.
func (t *FairTable[K]) Len() int { return len(t.entries) }

// Add adds an entry. Of the entries of one source, the last added is displaced first.
func (t *FairTable[K]) Add(e Entry[K]) {
	if t.held == nil {
		t.held = make(map[string]int)
	}
	t.entries = append(t.entries, e)
	for _, s := range sourcesOrWidest(e.Sources) {
		t.held[s.Key]++
	}
}

// Remove removes the entry with this key.
func (t *FairTable[K]) Remove(key K) {
	i := slices.IndexFunc(t.entries, func(e Entry[K]) bool { return e.Key == key })
	if i < 0 {
		return
	}
	for _, s := range sourcesOrWidest(t.entries[i].Sources) {
		t.held[s.Key]--
	}
	t.entries = slices.Delete(t.entries, i, i+1)
}

// Postpone sets GivesWayLast of the entry with this key.
func (t *FairTable[K]) Postpone(key K) {
	for i := range t.entries {
		if t.entries[i].Key == key {
			t.entries[i].GivesWayLast = true
		}
	}
}

const maxWidth = 4 // the largest Source.Width

// sourcesOrWidest returns the sources to which an entry is charged. Entries without sources share one, of the largest
// width.
func sourcesOrWidest(sources []Source) []Source {
	if len(sources) == 0 {
		return []Source{{Width: maxWidth}}
	}
	return sources
}

// load returns the largest load of the sources after extra entries are added to each. The load of a source is its number
// of entries times maxWidth, divided by its own width, so that a wide network may hold more.
func (t *FairTable[K]) load(sources []Source, extra int) (load int) {
	for _, s := range sourcesOrWidest(sources) {
		load = max(load, (t.held[s.Key]+extra)*maxWidth/max(1, s.Width))
	}
	return load
}

// FindDisplaceable returns the entry that a newcomer from these sources may displace. ok is false if no source has a
// larger load than the newcomer's sources would have with the new entry.
func (t *FairTable[K]) FindDisplaceable(sources []Source) (key K, ok bool) {
	return t.find(t.load(sources, 1))
}

// FindHeaviest returns an entry of the source with the largest load, for a newcomer that must get room even if its own
// sources hold most. ok is false if the table is empty.
func (t *FairTable[K]) FindHeaviest() (key K, ok bool) { return t.find(-1) }

// find returns the entry with the largest load, if that is above floor. Among equals it prefers one without
// GivesWayLast, and then the last added.
func (t *FairTable[K]) find(floor int) (key K, ok bool) {
	var found Entry[K]
	heaviest := floor
	for _, e := range t.entries {
		load := t.load(e.Sources, 0)
		if load > heaviest || ok && load == heaviest && (found.GivesWayLast || !e.GivesWayLast) {
			found, heaviest, ok = e, load, true
		}
	}
	return found.Key, ok
}
