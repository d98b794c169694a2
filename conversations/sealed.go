package conversations

import (
	"encoding/base64"
	"errors"
	"fmt"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// ErrSealed: a sealed payload cannot be opened, or what is in it must not be sealed.
var ErrSealed = errors.New("conversations: the sealed payload cannot be taken")

// The member of a sealed payload, and that of payload.metadata inside in which a sender names itself.
const (
	memberAge    = "age"
	metaSealedBy = "sealed_by"
)

// outside are the extensions that the protocol itself reads (AM-16): they stay beside the seal, and inside say nothing.
var outside = []string{"in_reply_to", "resend_of", "agreed_in"}

// padTo is what the length of a plaintext is rounded up to, with blanks, so that "accept" is as long as "decline".
const padTo = 512

// Sealer is who seals.
type Sealer struct {
	Agent     wire.AgentID
	Recipient string // what an answer is sealed to: "age1…"
}

// Seal makes the sealed form of a payload, {"action":"sealed","age":…} (AM-85), and returns the key of this one message
// beside it. Inside, the sender names itself: a seal that somebody else takes over is refused.
func (by Sealer) Seal(payload wire.Value, recipient string) (sealed wire.Value, key []byte, err error) {
	meta, _ := payload.Get("metadata")
	beside := wire.Obj()
	for _, name := range outside {
		if v, ok := meta.Get(name); ok {
			beside = beside.With(name, v)
		}
	}
	inside := meta.Without(outside...).With(metaSealedBy, wire.Obj(
		wire.Member{Key: "agent_id", Value: wire.Text(string(by.Agent))},
		wire.Member{Key: "age_recipient", Value: wire.Text(by.Recipient)},
	))
	plain := signing.Canonical(payload.With("metadata", inside), signing.JCS)
	for len(plain)%padTo != 0 {
		plain = append(plain, ' ')
	}
	file, key, err := signing.SealAgeKeyed(recipient, plain)
	if err != nil {
		return wire.Value{}, nil, err
	}
	sealed = wire.Obj(
		wire.Member{Key: "action", Value: wire.Text(wire.ActionSealed)},
		wire.Member{Key: memberAge, Value: wire.Text(base64.StdEncoding.EncodeToString(file))},
	)
	if beside.Len() > 0 {
		sealed = sealed.With("metadata", beside)
	}
	return sealed, key, nil
}

// IsSealed says whether a payload claims to be a sealed one.
func IsSealed(payload wire.Value) bool { return payload.GetStr("action") == wire.ActionSealed }

// Unsealed is what was in a sealed payload.
type Unsealed struct {
	Payload wire.Value
	By      Sealer // without a recipient where the sender names none
	Key     []byte // opens this one message again, see [SaidIn]
}

// Unseal opens a sealed payload that from has sent to the holder of one of keys, and named itself in. An error matches
// [ErrSealed], and says nothing more that from does not know.
func Unseal(keys []*signing.PrivateKey, sealed wire.Value, from wire.AgentID) (Unsealed, error) {
	file, err := fileOf(sealed)
	if err != nil {
		return Unsealed{}, err
	}
	err = signing.ErrAge
	var plain, fileKey []byte
	for _, key := range keys {
		if plain, fileKey, err = key.Unseal(file, wire.MaxMessage); err == nil {
			break
		}
	}
	if err != nil {
		return Unsealed{}, fmt.Errorf("%w: it is not sealed to this agent's key", ErrSealed)
	}
	o, err := read(sealed, plain)
	if err == nil && (o.By.Agent == "" || o.By.Agent != from) {
		err = fmt.Errorf("%w: inside, its sender is not named as who sealed it", ErrSealed)
	}
	if err != nil {
		return Unsealed{}, err
	}
	o.Key = fileKey
	return o, nil
}

// openWith opens a sealed payload with the key of the message.
func openWith(key []byte, sealed wire.Value) (wire.Value, error) {
	file, err := fileOf(sealed)
	if err != nil {
		return wire.Value{}, err
	}
	plain, err := signing.OpenAgeWith(key, file, wire.MaxMessage)
	if err != nil {
		return wire.Value{}, fmt.Errorf("%w: the key is not that of the message", ErrSealed)
	}
	o, err := read(sealed, plain)
	return o.Payload, err
}

func fileOf(sealed wire.Value) ([]byte, error) {
	file, err := base64.StdEncoding.Strict().DecodeString(sealed.GetStr(memberAge))
	if err != nil || len(file) == 0 || base64.StdEncoding.EncodeToString(file) != sealed.GetStr(memberAge) {
		return nil, fmt.Errorf("%w: age must be a file in padded base64", ErrSealed)
	}
	return file, nil
}

// read reads what was sealed: one strict JSON object, that is neither sealed again nor a close.
func read(sealed wire.Value, plain []byte) (o Unsealed, err error) {
	v, err := wire.ParseObject(plain)
	if err != nil {
		return o, fmt.Errorf("%w: inside is not one strict JSON object", ErrSealed)
	}
	if action := v.GetStr("action"); action == wire.ActionSealed || action == wire.ActionClose {
		return o, fmt.Errorf("%w: %s must not be sealed", ErrSealed, action)
	}
	meta, has := v.Get("metadata")
	by, _ := meta.Get(metaSealedBy)
	o.By = Sealer{Agent: wire.AgentID(by.GetStr("agent_id")), Recipient: by.GetStr("age_recipient")}
	if !signing.ValidAgeRecipient(o.By.Recipient) {
		o.By.Recipient = ""
	}
	if has && meta.Kind() == wire.Object {
		meta = meta.Without(append([]string{metaSealedBy}, outside...)...)
	}
	beside, _ := sealed.Get("metadata")
	for _, name := range outside {
		if text := beside.GetStr(name); text != "" && (!has || meta.Kind() == wire.Object) {
			meta = meta.With(name, wire.Text(text))
		}
	}
	switch {
	case meta.Kind() == wire.Object && meta.Len() == 0:
		v = v.Without("metadata")
	case meta.Kind() == wire.Object:
		v = v.With("metadata", meta)
	}
	o.Payload = v
	return o, nil
}

// Said is what an entry of a transcript says.
type Said struct {
	Intent  wire.Intent
	Payload wire.Value // opened, where it came sealed and the entry has its key
	Sealed  bool
}

// SaidIn reads an entry. ok is false where it is no message of ours: a foreign peer's.
func SaidIn(e store.Entry) (s Said, ok bool) {
	v, err := wire.ParseObject(e.Raw)
	if err != nil {
		return s, false
	}
	payload, ok := v.Get("payload")
	s = Said{Intent: wire.Intent(v.GetStr("intent")), Payload: payload, Sealed: IsSealed(payload)}
	if s.Sealed && len(e.Key) > 0 {
		if opened, err := openWith(e.Key, payload); err == nil {
			s.Payload = opened
		}
	}
	return s, ok
}
