package rate

// Place is an entry of a bounded table that strangers share.
type Place[K comparable] struct {
	Key     K
	Sources []Source // the sources that the place counts for
	Size    int      // how much of the table it takes; 0 means 1
	Last    bool     // it gives way after the other places of its source
}

// Crowd records which sources have the places of a full table, so that a newcomer can take one (AM-42): a place of the
// source that has the most, if that source then still has more than the newcomer's source. Places without a source
// count for one wide network. A table that is not full needs no Crowd. A Crowd is not safe for concurrent use.
type Crowd[K comparable] struct {
	places []Place[K]
	held   map[string]int // total size of the places, by the key of a source
}

// Add adds a place. Of the places of a source, the last added gives way first, so the order of the calls decides
// whether old or new places are kept.
func (c *Crowd[K]) Add(p Place[K]) {
	if c.held == nil {
		c.held = make(map[string]int)
	}
	p.Size = max(1, p.Size)
	c.places = append(c.places, p)
	for _, s := range sourcesOrWidest(p.Sources) {
		c.held[s.Key] += p.Size
	}
}

// Remove removes the place with this key.
func (c *Crowd[K]) Remove(key K) {
	for i, p := range c.places {
		if p.Key == key {
			c.places = append(c.places[:i], c.places[i+1:]...)
			for _, s := range sourcesOrWidest(p.Sources) {
				c.held[s.Key] -= p.Size
			}
			return
		}
	}
}

// Postpone makes the place with this key give way after the other places of its source.
func (c *Crowd[K]) Postpone(key K) {
	for i := range c.places {
		if c.places[i].Key == key {
			c.places[i].Last = true
		}
	}
}

// maxWidth is the width of the widest network.
const maxWidth = 4

// sourcesOrWidest returns the sources that a place counts for: its own or, if it has none, one source of the widest
// network.
func sourcesOrWidest(sources []Source) []Source {
	if len(sources) == 0 {
		return []Source{{Width: maxWidth}}
	}
	return sources
}

// load returns the largest load of the sources, if each of them held more in addition. The load of a source is what it
// holds divided by its shares, in quarters.
func (c *Crowd[K]) load(sources []Source, more int) (load int) {
	for _, s := range sourcesOrWidest(sources) {
		load = max(load, (c.held[s.Key]+more)*maxWidth/max(1, s.Width))
	}
	return load
}

// Victim returns the place that a newcomer of this size from the sources may take. ok is false if no source would then
// still have more than the newcomer's.
func (c *Crowd[K]) Victim(sources []Source, size int) (key K, ok bool) {
	return c.heaviest(c.load(sources, max(1, size)))
}

// ForcedVictim returns the place that gives way if a newcomer must find room, whatever its sources have. ok is false if
// the table is empty.
func (c *Crowd[K]) ForcedVictim() (key K, ok bool) { return c.heaviest(-1) }

// heaviest returns the place that gives way first among those whose load is above least.
func (c *Crowd[K]) heaviest(least int) (key K, ok bool) {
	var victim Place[K]
	most := least
	for _, p := range c.places {
		load := c.load(p.Sources, 0)
		if load > most || ok && load == most && (victim.Last || !p.Last) {
			victim, most, ok = p, load, true
		}
	}
	return victim.Key, ok
}
