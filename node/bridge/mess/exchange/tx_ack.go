package exchange

import (
	"cmp"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
)

// ack acknowledges an entry other than a request.
func (t *tx) ack(e thread.Entry, ref string) {
	body := wire.Obj().WithOptional("re", e.Body.GetStr("id")).WithOptional("ref", ref)
	t.answers = append(t.answers, thread.Entry{Type: "ack", Body: body.With("received_at", thread.TimeText(t.now))})
}

// ackRequests returns the ack of the requests of a block (MESS-35): a single one, or a common one for several.
func ackRequests(acks []requestAck, now time.Time) thread.Block {
	var body wire.Value
	switch len(acks) {
	case 0:
		return nil
	case 1:
		body = wire.Obj(wire.TextField("re", cmp.Or(acks[0].id, "last")), wire.TextField("ref", acks[0].ref))
	default:
		list := make([]wire.Value, len(acks))
		for i, a := range acks {
			list[i] = wire.Obj().WithOptional("id", a.id).With("ref", wire.Text(a.ref))
		}
		body = wire.Obj(wire.Field("requests", wire.Arr(list...)))
	}
	return thread.Block{{Type: "ack", Body: body.With("received_at", thread.TimeText(now))}}
}
