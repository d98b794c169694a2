package conversations

import (
	"errors"
	"fmt"
	"strings"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

// MaxPayload is the largest payload that we send, in bytes. It leaves room for the rest of the message.
const MaxPayload = wire.MaxMessage - 4<<10

// CheckOwn checks a payload that we are about to sign, and returns it with canonical numbers. It refuses integer-like
// keys (AM-15), and drops members of the metadata that only the node may set.
func CheckOwn(intent wire.Intent, payload wire.Value) (wire.Value, error) {
	if payload.Kind() != wire.Object {
		return wire.Value{}, errors.New("payload must be a JSON object")
	}
	if meta, ok := payload.Get("metadata"); ok {
		if meta.Kind() != wire.Object {
			return wire.Value{}, errors.New("payload.metadata must be an object")
		}
		payload = payload.With("metadata", meta.Without("in_reply_to", "resend_of"))
	}
	if IsSealed(payload) {
		return wire.Value{}, errors.New(`only the node itself may seal a payload: do not use the action "sealed"`)
	}
	if _, err := wire.CheckPayload(intent, payload); err != nil {
		return wire.Value{}, err
	}
	if hasIntegerKey(payload) {
		return wire.Value{}, errors.New("payload must have no member whose name is a whole number")
	}
	text := signing.Canonical(payload, signing.JCS)
	if len(text) > MaxPayload {
		return wire.Value{}, fmt.Errorf("payload must be at most %d bytes", MaxPayload)
	}
	return wire.ParseObject(text)
}

// hasIntegerKey reports whether v has a key of digits only, which the form [signing.ES] may sort as a number (AM-14).
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
