package bridgetest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// nsMarks is the namespace of the recorder's marks. The recorder adds a mark to the changes in [bridge.Inbound].Records,
// so the mark shows whether the node made these changes.
const nsMarks = "bridgetest"

// call is one message that the bridge handed to the node.
type call struct {
	in   bridge.Inbound
	out  bridge.Outcome
	err  error
	mark string // the key of the mark in nsMarks
}

// recorder stands between the bridge and the node, and records the messages that pass in either direction.
type recorder struct {
	t *testing.T
	bridge.Mesh
	store      store.Store
	deliveries chan bridge.Delivery // the node's messages that the bridge has delivered

	transportSet chan struct{} // closed when transport is set
	transport    bridge.Transport

	mu    sync.Mutex
	calls []call
}

func newRecorder(t *testing.T) *recorder {
	return &recorder{t: t, transportSet: make(chan struct{}), deliveries: make(chan bridge.Delivery, 100)}
}

func (r *recorder) setTransport(to bridge.Transport) {
	r.transport = to
	close(r.transportSet)
}

// Accept implements [bridge.Receiver].
func (r *recorder) Accept(ctx context.Context, in bridge.Inbound) (bridge.Outcome, error) {
	if fault := findFault(in); fault != "" {
		r.t.Errorf("the bridge handed in a message %s: %+v", fault, in)
	}
	r.mu.Lock()
	mark := fmt.Sprint(len(r.calls))
	r.calls = append(r.calls, call{in: in, mark: mark})
	r.mu.Unlock()
	in.Records = append(in.Records, store.Change{Record: store.Record{NS: nsMarks, Key: mark}})
	out, err := r.Mesh.Accept(ctx, in)
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.calls {
		if r.calls[i].mark == mark {
			r.calls[i].out, r.calls[i].err = out, err
		}
	}
	return out, err
}

// findFault returns why a bridge must not hand in a message, as text after "a message", or "" if the message is valid.
func findFault(in bridge.Inbound) string {
	address, err := bridge.ParseAddress(in.Address)
	meta, _ := in.Payload.Get("metadata")
	origin, _ := meta.Get("bridge")
	switch {
	case err != nil:
		return "without a proper address"
	case in.Peer != address.Pseudonym():
		return "whose peer is not the pseudonym of its address"
	case in.Principal == "":
		return "without a principal"
	case in.Native != nil:
		return "that claims to be a native one"
	case in.Verified == "":
		return "that does not say how its sender is known"
	case !in.MessageID.Valid(), !in.ConvID.Valid(), !in.Intent.Valid():
		return "with a bad id or intent"
	case in.Payload.Kind() != wire.Object || len(in.Payload.JSON()) > wire.MaxMessage:
		return "with a payload that is not an object or is too large"
	case origin.GetStr("kind") != address.Kind, origin.GetStr("link") != address.Link, origin.GetStr("peer") != address.Peer:
		return "whose metadata.bridge does not fit its address"
	case len(in.Raw) == 0, in.Digest == [32]byte{}, in.Time.IsZero(), in.Received.IsZero():
		return "without bytes, digest or times"
	}
	return ""
}

// Deliver implements [bridge.Transport].
func (r *recorder) Deliver(ctx context.Context, d bridge.Delivery) (bridge.Delivered, error) {
	select {
	case <-r.transportSet:
	case <-ctx.Done():
		return bridge.Delivered{}, ctx.Err()
	}
	delivered, err := r.transport.Deliver(ctx, d)
	if err == nil {
		r.deliveries <- d
	}
	return delivered, err
}

func (r *recorder) callCount() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.calls)
}

// callsAfter returns the calls after the first n.
func (r *recorder) callsAfter(n int) []call {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]call(nil), r.calls[n:]...)
}

// onlyCallAfter returns the single call after the first n. It checks that the changes of in.Records were made if and
// only if the node accepted the message.
func (r *recorder) onlyCallAfter(n int) call {
	r.t.Helper()
	calls := r.callsAfter(n)
	if len(calls) != 1 {
		r.t.Fatalf("the bridge handed in %d messages, want 1", len(calls))
	}
	c := calls[0]
	_, err := r.store.Records().Get(r.t.Context(), nsMarks, c.mark, time.Now())
	if stored, accepted := err == nil, c.err == nil && !c.out.Duplicate; stored != accepted {
		r.t.Errorf("message accepted: %v (%v), the bridge's record stored: %v (%v)", accepted, c.err, stored, err)
	}
	return c
}

// nextDelivery returns the next message that the node delivered.
func (r *recorder) nextDelivery() bridge.Delivery {
	r.t.Helper()
	select {
	case d := <-r.deliveries:
		return d
	case <-time.After(patience):
		r.t.Fatal("the node delivered nothing")
		return bridge.Delivery{}
	}
}
