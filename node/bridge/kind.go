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
	// Honors are the keys under policy that links of this kind honor. The node itself enforces access for every kind,
	// so access is not listed. A key stands for all keys below it: "filter" for "filter.types".
	Honors []string
	// Encrypt are the accepted values of policy.encrypt. If it is empty, the links do not honor the key.
	Encrypt []string
	// Check returns an error for a link that breaks a rule of this kind. A nil Check accepts every link.
	Check func(Link) *PolicyError

	// Intents is a pattern that matches the intents of the messages that the service handles; see [Handler].
	Intents string
	// Native reports that agents of the mesh send such messages too, so the handler gets messages even without links.
	Native bool
	// Repeatable reports that the service may handle a message again after a crash in the middle of it (AM-75).
	Repeatable bool
	// Receipts is the action of replies that only confirm an arrival. The node delivers them to nobody.
	Receipts string
	// Holds decide which messages of this kind wait for the owner, if no rule that the owner configured decides.
	Holds []acl.HoldRule
	// OwnerHolds are such rules for the messages that the owner writes. Holds decide first.
	OwnerHolds []acl.HoldRule
	// Silence is how long a conversation may be silent before it expires, for intents that do not have the default.
	Silence map[wire.Intent]time.Duration
	// Inbound takes the place of the link name in the addresses of peers that connect to us without a link. It is empty
	// if the kind has no such peers.
	Inbound string
	// Web reports that the owner may write to a peer by its URL, as in "a2a:https://host"; see [WebLink].
	Web bool
	// Screens reports that the bridge itself looks for personal data before a message leaves. For other kinds the node
	// notifies the owner about a message with personal data.
	Screens bool
}

// PolicyError reports a key of a link's policy that the link would ignore, or whose value it cannot use.
type PolicyError struct {
	Link string // name of the link
	Key  string // as the configuration writes it: "policy.tools"
	Why  string
	Fix  string
}

func (e *PolicyError) Error() string { return e.Key + " of link " + e.Link + ": " + e.Reason() }

// Reason returns why the key is refused and how to fix it, for a message that already names the link and the key.
func (e *PolicyError) Reason() string { return e.Why + "; " + e.Fix }

// CheckPolicy returns an error for each key in the policy of l that links of this kind do not honor, for an encrypt
// value that they do not accept, and for a fault that k.Check finds. A policy key that the link ignored would let in,
// or send out, messages that the owner meant to stop.
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
			Why: fmt.Sprintf("%s links do not accept the value %q", k.Name, e),
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

// setKeys returns the configuration keys of the struct v whose values are not zero. Keys of a nested struct are joined
// with dots, as in "filter.types".
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
