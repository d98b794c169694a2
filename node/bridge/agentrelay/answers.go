package agentrelay

import (
	"slices"

	"github.com/agentmesh/agentmesh/acl/rate"
)

// maxUnsent is how many answers wait for the connection or the budget.
const maxUnsent = 1000

// answerQueue holds the answers that wait to be sent. Peers take turns, so an agent that makes us answer a lot delays its
// own answers and nobody else's. A relay shows ids alone, so each id is a source.
type answerQueue struct {
	list []answer
	turn int            // of the answer that was sent last
	last map[string]int // the last turn of each peer that has one to come
}

type answer struct {
	peer  string
	frame []byte
	turn  int
}

// add puts an answer at the end of its peer's. If the queue is full, the newest answer of the peer that has most gives way,
// or none is added.
func (q *answerQueue) add(peer string, frame []byte) {
	if len(q.list) == maxUnsent && !q.makeRoom(peer) {
		return
	}
	if q.last == nil {
		q.last = make(map[string]int)
	}
	a := answer{peer, frame, max(q.turn, q.last[peer]) + 1}
	q.last[peer] = a.turn
	q.list = append(q.list, a)
}

func (q *answerQueue) makeRoom(peer string) bool {
	var crowd rate.Crowd[int]
	for i, a := range q.list {
		crowd.Add(rate.Place[int]{Key: i, Sources: idSource(a.peer)})
	}
	i, ok := crowd.Victim(idSource(peer), 1)
	if ok {
		q.last[q.list[i].peer]--
		q.list = slices.Delete(q.list, i, i+1)
	}
	return ok
}

func idSource(peer string) []rate.Source { return []rate.Source{{Key: peer, Width: 1}} }

// first returns the place in the list of the answer whose turn it is; -1 if there is none.
func (q *answerQueue) first() int {
	first := -1
	for i, a := range q.list {
		if first < 0 || a.turn < q.list[first].turn {
			first = i
		}
	}
	return first
}

// remove removes the answer at a place of the list, because it was sent.
func (q *answerQueue) remove(i int) {
	a := q.list[i]
	q.list, q.turn = slices.Delete(q.list, i, i+1), a.turn
	if q.last[a.peer] == a.turn {
		delete(q.last, a.peer)
	}
}
