package exchange

import (
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
)

// ack acknowledges an entry other than a request.
func (t *tx) ack(e thread.Entry, ref string) {
	body := wire.Obj()
	if id := e.Body.GetStr("id"); id != "" {
		body = body.With("re", wire.Text(id))
	}
	if ref != "" {
		body = body.With("ref", wire.Text(ref))
	}
	t.answers = append(t.answers, thread.Entry{Type: "ack", Body: body.With("received_at", thread.TimeText(t.now))})
}

// writeAcks writes the acks of MESS-35: one for a single request, a common one for several, and those of the other
// entries.
func (t *tx) writeAcks() {
	var head thread.Block
	switch len(t.acks) {
	case 0:
	case 1:
		re := t.acks[0].id
		if re == "" {
			re = "last"
		}
		head = thread.Block{{Type: "ack", Body: wire.Obj(
			wire.TextField("re", re), wire.TextField("ref", t.acks[0].ref), wire.Field("received_at", thread.TimeText(t.now)))}}
	default:
		list := make([]wire.Value, len(t.acks))
		for i, a := range t.acks {
			list[i] = wire.Obj()
			if a.id != "" {
				list[i] = list[i].With("id", wire.Text(a.id))
			}
			list[i] = list[i].With("ref", wire.Text(a.ref))
		}
		head = thread.Block{{Type: "ack", Body: wire.Obj(
			wire.Field("requests", wire.Arr(list...)), wire.Field("received_at", thread.TimeText(t.now)))}}
	}
	t.result.Answers = append(head, t.answers...)
}
