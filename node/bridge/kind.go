package bridge

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Kind is a foreign network as its bridge declares it to the node.
type Kind struct {
	// Name is what addresses and configured links call the network: "mess".
	Name string
	// Honors are the keys below policy that links of the kind honor, besides access: the node enforces access for every
	// kind. A key stands for all keys below it: "filter" for "filter.types".
	Honors []string
	// Encrypt are the values of policy.encrypt that links of the kind know. If there are none, they do not honor the key.
	Encrypt []string
	// Check returns what is wrong with a link for a reason that only this kind knows; nil accepts every link.
	Check func(Link) *PolicyError

	// Intents is the pattern of the messages that the service handles, see [Handler].
	Intents string
	// Native reports that agents of the mesh send such messages, too. Else a service without links handles nothing.
	Native bool
	// Repeatable reports that a message may be handled again after a crash in the middle of it (AM-75).
	Repeatable bool
	// Receipts is the action of answers to messages of the node that say only that those arrived. They reach nobody.
	Receipts string
	// Holds are rules about the kind's intents. They come after the rules that the owner configured.
	Holds []acl.HoldRule
	// Silence is how long conversations of an intent may be silent before they expire, if not as long as others.
	Silence map[wire.Intent]time.Duration
	// Inbound is the link in the addresses of peers that came by no link; empty: there are none.
	Inbound string
	// Screens reports that the bridge looks for personal data itself before a message leaves. For other kinds the owner
	// is told when a message with personal data left.
	Screens bool
}

// PolicyError is a key of a link's policy that the link would ignore.
type PolicyError struct {
	Link string // name of the link
	Key  string // as the configuration writes it: "policy.route"
	Why  string
	Fix  string
}

func (e *PolicyError) Error() string { return e.Key + " of link " + e.Link + ": " + e.Reason() }

// Reason returns why the key is refused and how to fix it, for a line that names link and key already.
func (e *PolicyError) Reason() string { return e.Why + "; " + e.Fix }

// CheckPolicy returns each key in the policy of l that links of the kind do not honor. A policy that asked for something
// and did not get it would let in, or send out, what the owner meant to keep.
func (k Kind) CheckPolicy(l Link) []*PolicyError {
	var out []*PolicyError
	honors := append([]string{"access"}, k.Honors...)
	if len(k.Encrypt) > 0 {
		honors = append(honors, "encrypt")
	}
	for _, key := range setKeys(reflect.ValueOf(l.Policy), "") {
		if slices.ContainsFunc(honors, func(h string) bool { return key == h || strings.HasPrefix(key, h+".") }) {
			continue
		}
		out = append(out, &PolicyError{
			Link: l.Name, Key: "policy." + key,
			Why: fmt.Sprintf("%s links do not use it", k.Name),
			Fix: fmt.Sprintf("remove policy.%s of link %s; %s links use policy.%s", key, l.Name, k.Name, strings.Join(honors, ", policy.")),
		})
	}
	if e := l.Policy.Encrypt; e != "" && len(k.Encrypt) > 0 && !slices.Contains(k.Encrypt, e) {
		values := strings.Join(k.Encrypt, ", ")
		out = append(out, &PolicyError{
			Link: l.Name, Key: "policy.encrypt",
			Why: fmt.Sprintf("%q is not a value that %s links know", e, k.Name),
			Fix: fmt.Sprintf("remove policy.encrypt of link %s, or set one of: %s", l.Name, values),
		})
	}
	if k.Check != nil {
		if e := k.Check(l); e != nil {
			out = append(out, e)
		}
	}
	return out
}

// setKeys returns the configuration keys of v, a struct, whose values are not the zero value: those of a nested struct as
// "filter.types".
func setKeys(v reflect.Value, prefix string) []string {
	var out []string
	for i := range v.NumField() {
		field, key := v.Field(i), prefix+v.Type().Field(i).Tag.Get("key")
		switch {
		case field.Kind() == reflect.Struct:
			out = append(out, setKeys(field, key+".")...)
		case !field.IsZero():
			out = append(out, key)
		}
	}
	return out
}
