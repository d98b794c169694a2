package conversations

import (
	"encoding/base64"
	"errors"
	"fmt"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// ErrSealed means that the sealed payload cannot be opened, or that its content must not be sealed.
var ErrSealed = errors.New("conversations: the sealed payload cannot be accepted")

// Names of members: the age file in a sealed payload, and the sender in the inner payload.metadata.
const (
	memberAge    = "age"
	metaSealedBy = "sealed_by"
)

// outerNames are the extensions in payload.metadata that the protocol itself reads (AM-16). They stay outside the
// sealed content, and have no effect inside it.
var outerNames = []string{"in_reply_to", "resend_of", "agreed_in"}

// padTo is the multiple of bytes to which a plaintext is padded, so that "accept" and "decline" have the same length.
const padTo = 512

// Sealer is an agent that seals payloads.
type Sealer struct {
	Agent     wire.AgentID
	Recipient string // the age recipient for answers: "age1…"
}

// Seal returns the sealed form of a payload, {"action":"sealed","age":…} (AM-85), and the key of this one message. The
// content names the sealer, so that a recipient refuses the sealed payload if another sender copied it.
func (s Sealer) Seal(payload wire.Value, recipient string) (sealed wire.Value, key []byte, err error) {
	meta, _ := payload.Get("metadata")
	outer := wire.Obj()
	for _, name := range outerNames {
		if v, ok := meta.Get(name); ok {
			outer = outer.With(name, v)
		}
	}
	inner := meta.Without(outerNames...).With(metaSealedBy, wire.Obj(
		wire.Member{Key: "agent_id", Value: wire.Text(string(s.Agent))},
		wire.Member{Key: "age_recipient", Value: wire.Text(s.Recipient)},
	))
	plain := signing.Canonical(payload.With("metadata", inner), signing.JCS)
	for len(plain)%padTo != 0 {
		plain = append(plain, ' ')
	}
	file, key, err := signing.SealAgeFileKey(recipient, plain)
	if err != nil {
		return wire.Value{}, nil, err
	}
	sealed = wire.Obj(
		wire.Member{Key: "action", Value: wire.Text(wire.ActionSealed)},
		wire.Member{Key: memberAge, Value: wire.Text(base64.StdEncoding.EncodeToString(file))},
	)
	if outer.Len() > 0 {
		sealed = sealed.With("metadata", outer)
	}
	return sealed, key, nil
}

// IsSealed reports whether a payload has the action sealed.
func IsSealed(payload wire.Value) bool { return payload.GetStr("action") == wire.ActionSealed }

// Unsealed is the content of a sealed payload.
type Unsealed struct {
	Payload wire.Value
	By      Sealer // the sender; its Recipient is empty if the content names none
	Key     []byte // opens this one message again, see [ReadContent]
}

// Unseal opens a payload that is sealed to one of keys. The content must name sender as its sealer. Errors match
// [ErrSealed].
func Unseal(keys []*signing.PrivateKey, sealed wire.Value, sender wire.AgentID) (Unsealed, error) {
	file, err := decodeAgeFile(sealed)
	if err != nil {
		return Unsealed{}, err
	}
	err = signing.ErrAge // if keys is empty
	var plain, fileKey []byte
	for _, key := range keys {
		if plain, fileKey, err = key.Unseal(file, wire.MaxMessage); err == nil {
			break
		}
	}
	if err != nil {
		return Unsealed{}, fmt.Errorf("%w: it is not sealed to this agent's key", ErrSealed)
	}
	o, err := readPlain(sealed, plain)
	if err == nil && (o.By.Agent == "" || o.By.Agent != sender) {
		err = fmt.Errorf("%w: the content does not name its sender as the agent that sealed it", ErrSealed)
	}
	if err != nil {
		return Unsealed{}, err
	}
	o.Key = fileKey
	return o, nil
}

// openWith opens a sealed payload with the key of this one message.
func openWith(key []byte, sealed wire.Value) (wire.Value, error) {
	file, err := decodeAgeFile(sealed)
	if err != nil {
		return wire.Value{}, err
	}
	plain, err := signing.OpenAgeWith(key, file, wire.MaxMessage)
	if err != nil {
		return wire.Value{}, fmt.Errorf("%w: the key does not open the message", ErrSealed)
	}
	o, err := readPlain(sealed, plain)
	return o.Payload, err
}

func decodeAgeFile(sealed wire.Value) ([]byte, error) {
	file, err := base64.StdEncoding.Strict().DecodeString(sealed.GetStr(memberAge))
	// The comparison refuses line breaks, which the decoder skips.
	if err != nil || len(file) == 0 || base64.StdEncoding.EncodeToString(file) != sealed.GetStr(memberAge) {
		return nil, fmt.Errorf(`%w: "age" must be a file in padded base64`, ErrSealed)
	}
	return file, nil
}

// readPlain reads the content of a sealed payload: one strict JSON object that is neither sealed again nor a close.
func readPlain(sealed wire.Value, plain []byte) (o Unsealed, err error) {
	v, err := wire.ParseObject(plain)
	if err != nil {
		return o, fmt.Errorf("%w: the content is not one strict JSON object", ErrSealed)
	}
	if action := v.GetStr("action"); action == wire.ActionSealed || action == wire.ActionClose {
		return o, fmt.Errorf("%w: a payload with the action %s must not be sealed", ErrSealed, action)
	}
	meta, hasMeta := v.Get("metadata")
	by, _ := meta.Get(metaSealedBy)
	o.By = Sealer{Agent: wire.AgentID(by.GetStr("agent_id")), Recipient: by.GetStr("age_recipient")}
	if !signing.ValidAgeRecipient(o.By.Recipient) {
		o.By.Recipient = ""
	}
	if o.Payload = v; hasMeta && meta.Kind() != wire.Object {
		return o, nil // metadata of another kind stays as it is
	}
	meta = meta.Without(append([]string{metaSealedBy}, outerNames...)...)
	outer, _ := sealed.Get("metadata")
	for _, name := range outerNames {
		if text := outer.GetStr(name); text != "" {
			meta = meta.With(name, wire.Text(text))
		}
	}
	if meta.Len() == 0 {
		o.Payload = v.Without("metadata")
	} else {
		o.Payload = v.With("metadata", meta)
	}
	return o, nil
}

// Content is the content of a transcript entry.
type Content struct {
	Intent  wire.Intent
	Payload wire.Value // opened if it was sealed and the entry has its key
	Sealed  bool
}

// ReadContent reads the content of an entry. ok is false if the entry is not a JSON object with a payload. A message of
// a foreign peer may have a payload in another form, such as a MEW envelope.
func ReadContent(e store.Entry) (c Content, ok bool) {
	v, err := wire.ParseObject(e.Raw)
	if err != nil {
		return c, false
	}
	payload, ok := v.Get("payload")
	c = Content{Intent: wire.Intent(v.GetStr("intent")), Payload: payload, Sealed: IsSealed(payload)}
	if c.Sealed && len(e.Key) > 0 {
		if opened, err := openWith(e.Key, payload); err == nil {
			c.Payload = opened
		}
	}
	return c, ok
}
