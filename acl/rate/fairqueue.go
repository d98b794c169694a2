package rate

import "slices"

// FairQueue is a bounded queue whose keys take turns, so that a key with many items delays only its own items. It is
// not safe for concurrent use.
type FairQueue[T any] struct {
	max     int
	items   []queueItem[T] // in the order of Add
	current int            // the turn of the item that was removed last
	last    map[string]int // latest turn of each key that has an item in the queue
}

// queueItem is an item of a queue. Items with a lower turn leave first. The turns of one key are distinct.
type queueItem[T any] struct {
	key  string
	item T
	turn int
}

// NewFairQueue returns an empty queue of at most max items.
func NewFairQueue[T any](max int) *FairQueue[T] {
	return &FairQueue[T]{max: max, last: make(map[string]int)}
}

// Len returns the number of items in the queue.
func (q *FairQueue[T]) Len() int { return len(q.items) }

// Add adds an item after the other items of its key. If the queue is full, the new item displaces the newest item of
// the key with the most items, or is dropped if its own key would then have as many items.
func (q *FairQueue[T]) Add(key string, item T) {
	if len(q.items) == q.max && !q.makeRoom(key) {
		return
	}
	q.last[key] = max(q.current, q.last[key]) + 1
	q.items = append(q.items, queueItem[T]{key, item, q.last[key]})
}

// makeRoom drops an item of another key, or returns false if key gets no room.
func (q *FairQueue[T]) makeRoom(key string) bool {
	var table FairTable[int]
	for i, it := range q.items {
		table.Add(Entry[int]{Key: i, Sources: []Source{{it.key, 1}}})
	}
	i, ok := table.FindDisplaceable([]Source{{key, 1}})
	if ok {
		q.last[q.items[i].key]--
		q.items = slices.Delete(q.items, i, i+1)
	}
	return ok
}

// First returns the item whose turn it is. The queue must not be empty.
func (q *FairQueue[T]) First() T { return q.items[q.first()].item }

// first returns the index of the item whose turn it is.
func (q *FairQueue[T]) first() int {
	first := 0
	for i, it := range q.items {
		if it.turn < q.items[first].turn {
			first = i
		}
	}
	return first
}

// RemoveFirst removes the item whose turn it is. The queue must not be empty.
func (q *FairQueue[T]) RemoveFirst() {
	i := q.first()
	it := q.items[i]
	q.items, q.current = slices.Delete(q.items, i, i+1), it.turn
	if q.last[it.key] == it.turn {
		delete(q.last, it.key)
	}
}
