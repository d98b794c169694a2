package conversations

import (
	"errors"
	"fmt"
	"strings"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

// MaxPayload is how many bytes a payload of ours may have: a message without what surrounds the payload.
const MaxPayload = wire.MaxMessage - 4<<10

// CheckOwn checks a payload that is to leave under our signature against its intent, and writes it as AM-15 wants:
// numbers in their canonical form, no integer-like keys. What only the node may say in its metadata is dropped.
func CheckOwn(intent wire.Intent, payload wire.Value) (wire.Value, error) {
	if payload.Kind() != wire.Object {
		return wire.Value{}, errors.New("payload must be a JSON object")
	}
	if meta, ok := payload.Get("metadata"); ok {
		if meta.Kind() != wire.Object {
			return wire.Value{}, errors.New("payload.metadata must be an object (AM-16)")
		}
		payload = payload.With("metadata", meta.Without("in_reply_to", "resend_of"))
	}
	if IsSealed(payload) {
		return wire.Value{}, errors.New("the node itself seals what is to be sealed: the action sealed is its own (AM-85)")
	}
	if _, err := wire.CheckPayload(intent, payload); err != nil {
		return wire.Value{}, err
	}
	if hasIntegerKey(payload) {
		return wire.Value{}, errors.New("payload must have no member whose name is a whole number (AM-15)")
	}
	text := signing.Canonical(payload, signing.JCS)
	if len(text) > MaxPayload {
		return wire.Value{}, fmt.Errorf("payload must be at most %d bytes", MaxPayload)
	}
	return wire.ParseObject(text)
}

// hasIntegerKey looks for names that some implementations sort as numbers (AM-14, form es).
func hasIntegerKey(v wire.Value) bool {
	for _, m := range v.Members() {
		if m.Key != "" && strings.Trim(m.Key, "0123456789") == "" || hasIntegerKey(m.Value) {
			return true
		}
	}
	for e := range v.Elems() {
		if hasIntegerKey(e) {
			return true
		}
	}
	return false
}
