package rate

import "slices"

// Turns is a bounded queue in which keys take turns: a key with many items delays only its own items. It is not safe
// for concurrent use.
type Turns[T any] struct {
	max  int
	list []turn[T]
	now  int            // turn of the item that was removed last
	last map[string]int // last turn of each key that has an item in the queue
}

type turn[T any] struct {
	key  string
	item T
	at   int
}

// NewTurns returns an empty queue of at most max items.
func NewTurns[T any](max int) *Turns[T] { return &Turns[T]{max: max, last: make(map[string]int)} }

// Len returns the number of items in the queue.
func (q *Turns[T]) Len() int { return len(q.list) }

// Add adds an item after the others of its key. If the queue is full, the newest item of the key that has the most
// gives way, or the new item is dropped.
func (q *Turns[T]) Add(key string, item T) {
	if len(q.list) == q.max && !q.makeRoom(key) {
		return
	}
	q.last[key] = max(q.now, q.last[key]) + 1
	q.list = append(q.list, turn[T]{key, item, q.last[key]})
}

func (q *Turns[T]) makeRoom(key string) bool {
	var crowd Crowd[int]
	for i, t := range q.list {
		crowd.Add(Place[int]{Key: i, Sources: []Source{{t.key, 1}}})
	}
	i, ok := crowd.Victim([]Source{{key, 1}}, 1)
	if ok {
		q.last[q.list[i].key]--
		q.list = slices.Delete(q.list, i, i+1)
	}
	return ok
}

// First returns the item whose turn it is. The queue must not be empty.
func (q *Turns[T]) First() T { return q.list[q.first()].item }

func (q *Turns[T]) first() int {
	first := 0
	for i, t := range q.list {
		if t.at < q.list[first].at {
			first = i
		}
	}
	return first
}

// RemoveFirst removes the item whose turn it is. The queue must not be empty.
func (q *Turns[T]) RemoveFirst() {
	i := q.first()
	t := q.list[i]
	q.list, q.now = slices.Delete(q.list, i, i+1), t.at
	if q.last[t.key] == t.at {
		delete(q.last, t.key)
	}
}
