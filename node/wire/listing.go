package wire

import (
	"bytes"
	"encoding/json"
	"strings"
	"time"
)

// stamp is a time that JSON shows in the format of AM-19. [time.Time] alone would write local offsets and nanoseconds.
type stamp time.Time

func (t stamp) IsZero() bool                 { return time.Time(t).IsZero() }
func (t stamp) MarshalText() ([]byte, error) { return []byte(FormatTime(time.Time(t))), nil }

// Encode returns the JSON of v and a line end, without escapes for < > &, so that cards in v keep their size.
func Encode(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return buf.Bytes(), err
}

// htmlEscapes skips \\, because \\u003c is an escaped backslash and the text u003c.
var htmlEscapes = strings.NewReplacer(`\\`, `\\`, `\u003c`, "<", `\u003e`, ">", `\u0026`, "&")

// UnescapeHTML returns a JSON document without the escapes that [json.Marshal] writes for < > &, to show it to a person.
func UnescapeHTML(document []byte) string { return htmlEscapes.Replace(string(document)) }

// Registered is the answer of a directory to POST and PUT (§4).
type Registered struct {
	AgentID      AgentID   `json:"agent_id"`
	RegisteredAt time.Time `json:"registered_at,omitzero"`
	ExpiresAt    time.Time `json:"expires_at"`
}

// MarshalJSON writes the times in the format of AM-19.
func (r Registered) MarshalJSON() ([]byte, error) {
	type plain Registered
	return json.Marshal(struct {
		plain
		RegisteredAt stamp `json:"registered_at,omitzero"`
		ExpiresAt    stamp `json:"expires_at"`
	}{plain(r), stamp(r.RegisteredAt), stamp(r.ExpiresAt)})
}

// Listing is one page of GET /agents (§4).
type Listing struct {
	Agents       []Value                  `json:"agents"`
	Cursor       string                   `json:"cursor,omitempty"`
	Verification map[AgentID]Verification `json:"verification,omitempty"`
}

// MarshalJSON writes a page without agents as an empty array, not as null.
func (l Listing) MarshalJSON() ([]byte, error) {
	type plain Listing
	if l.Agents == nil {
		l.Agents = []Value{}
	}
	return json.Marshal(plain(l))
}

// Verification has what a directory itself has proven about a card (AM-61). A nil time means not proven.
type Verification struct {
	Key          *time.Time `json:"key"`
	Endpoint     *time.Time `json:"endpoint"`
	Alive        *time.Time `json:"alive"`
	ID           string     `json:"id"` // "derived" if the key proves the agent id, otherwise "opaque"
	KeyChangedAt *time.Time `json:"key_changed_at,omitempty"`
}

// MarshalJSON writes the times in the format of AM-19.
func (v Verification) MarshalJSON() ([]byte, error) { return v.AppendJSON(nil), nil }

// AppendJSON appends the JSON of v, with the times in the format of AM-19.
func (v Verification) AppendJSON(dst []byte) []byte {
	dst = AppendString(append(dst, `{"id":`...), v.ID)
	dst = appendTime(append(dst, `,"key":`...), v.Key)
	dst = appendTime(append(dst, `,"endpoint":`...), v.Endpoint)
	dst = appendTime(append(dst, `,"alive":`...), v.Alive)
	if v.KeyChangedAt != nil {
		dst = appendTime(append(dst, `,"key_changed_at":`...), v.KeyChangedAt)
	}
	return append(dst, '}')
}

func appendTime(dst []byte, t *time.Time) []byte {
	if t == nil {
		return append(dst, "null"...)
	}
	return append(t.UTC().AppendFormat(append(dst, '"'), timeLayout), '"')
}

// CardRecord is the answer to GET /agents/{id}/record.
type CardRecord struct {
	Card         Value        `json:"card"`
	RegisteredAt time.Time    `json:"registered_at"`
	ExpiresAt    time.Time    `json:"expires_at"`
	Verification Verification `json:"verification"`
	KeyProof     string       `json:"key_proof,omitempty"`
}

// MarshalJSON writes the times in the format of AM-19.
func (r CardRecord) MarshalJSON() ([]byte, error) {
	type plain CardRecord
	return Encode(struct {
		plain
		RegisteredAt stamp `json:"registered_at"`
		ExpiresAt    stamp `json:"expires_at"`
	}{plain(r), stamp(r.RegisteredAt), stamp(r.ExpiresAt)})
}

// KeyHistory is the answer to GET /agents/{id}/keys (AM-60): all keys that a card has had.
type KeyHistory struct {
	AgentID AgentID     `json:"agent_id"`
	Keys    []KeyChange `json:"keys"` // oldest first; the last key is the current one
}

// KeyChange is one key of a card. A rotation has both proofs and their text, so that a peer need not trust the
// directory.
type KeyChange struct {
	PublicKey     string    `json:"public_key"`
	Since         time.Time `json:"since"`
	Retired       time.Time `json:"retired,omitzero"`
	Proof         string    `json:"proof,omitempty"`          // AgentMesh-Key-Proof, signed with this key
	PreviousProof string    `json:"previous_proof,omitempty"` // AgentMesh-Previous-Key-Proof, signed with the previous key
	ProofText     string    `json:"proof_text,omitempty"`     // the lines that both proofs sign
	// Card is the card whose digest is in ProofText.
	Card Value `json:"card,omitzero"`
}

// MarshalJSON writes the times in the format of AM-19.
func (c KeyChange) MarshalJSON() ([]byte, error) {
	type plain KeyChange
	return Encode(struct {
		plain
		Since   stamp `json:"since"`
		Retired stamp `json:"retired,omitzero"`
	}{plain(c), stamp(c.Since), stamp(c.Retired)})
}

// Headers of the directory API.
const (
	HeaderKeyProof         = "AgentMesh-Key-Proof"
	HeaderPreviousKeyProof = "AgentMesh-Previous-Key-Proof"
	HeaderVerification     = "AgentMesh-Verification"
	HeaderInvite           = "AgentMesh-Invite"
	HeaderDirectory        = "AgentMesh-Directory" // in the answer to a registration: the directory's own base URL
)

// WellKnown is the document at /.well-known/agentmesh.json (AM-81).
type WellKnown struct {
	AgentMesh      string   `json:"agentmesh"`
	AgentID        AgentID  `json:"agent_id,omitempty"`
	Endpoint       string   `json:"endpoint,omitempty"`
	Directory      string   `json:"directory,omitempty"`
	MaxMessage     int      `json:"max_message_bytes"`
	MaxCard        int      `json:"max_card_bytes"`
	WindowPast     int      `json:"window_past_seconds"`
	WindowFuture   int      `json:"window_future_seconds"`
	CanonicalForms []string `json:"canonical_forms"`
	KeyKinds       []string `json:"key_kinds"`
}
