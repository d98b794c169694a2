package conversations

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// ExportFormat is the value of agentmesh_export in the head and the seal of an export.
const ExportFormat = "conversation-v1"

// ExportHead is the first line of an export. It names the conversation and the keys with which to check the export. An
// export has one JSON object per line: the head, the entries of the transcript, and a seal in which the exporting node
// signs the SHA-256 of all lines before it.
type ExportHead struct {
	Format       string              `json:"agentmesh_export"`
	Self         wire.AgentID        `json:"self"` // the exporting node
	Peer         string              `json:"peer"` // agent id, or pseudonym of a foreign peer
	Conversation wire.ConversationID `json:"conversation_id"`
	State        State               `json:"state"`
	Opened       time.Time           `json:"opened"`
	Exported     time.Time           `json:"exported"`
	Entries      uint64              `json:"entries"`
	Chain        string              `json:"chain"` // chain hash of the last entry, in hex
	Keys         []ExportKey         `json:"keys"`
}

// ExportKey is a public key with which one of the sides has signed.
type ExportKey struct {
	Agent     wire.AgentID `json:"agent_id"`
	PublicKey string       `json:"public_key"`
}

type exportEntry struct {
	N         uint64    `json:"n"`
	Out       bool      `json:"out"`
	At        time.Time `json:"at"`
	MessageID string    `json:"message_id"`
	Digest    string    `json:"digest"` // hex
	Chain     string    `json:"chain"`  // hex
	Raw       []byte    `json:"raw"`    // base64 of the bytes as received or sent
	// Key opens the sealed payload in Raw, and Opened is that payload. Both are empty unless the export opens sealed
	// payloads.
	Key    []byte      `json:"key,omitempty"`
	Opened *wire.Value `json:"opened,omitempty"`
}

// Exporter writes an export. Call Head, then Entry for each entry, then Seal. It must not be used after an error.
type Exporter struct {
	to         io.Writer
	sum        hash.Hash
	openSealed bool
}

// NewExporter returns an exporter that writes to w. If openSealed is set, it also writes the content of sealed
// payloads, and the key of each sealed message, which proves the content.
func NewExporter(w io.Writer, openSealed bool) *Exporter {
	sum := sha256.New()
	return &Exporter{to: io.MultiWriter(w, sum), sum: sum, openSealed: openSealed}
}

func (x *Exporter) writeLine(v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode export: %w", err)
	}
	if _, err := x.to.Write(append(data, '\n')); err != nil {
		return fmt.Errorf("write export: %w", err)
	}
	return nil
}

// Head writes the first line, and sets h.Format itself.
func (x *Exporter) Head(h ExportHead) error {
	h.Format = ExportFormat
	return x.writeLine(h)
}

// Entry writes one entry of the transcript.
func (x *Exporter) Entry(e store.Entry) error {
	line := exportEntry{
		N: e.N, Out: e.Out, At: e.At.UTC(), MessageID: e.MessageID,
		Digest: hex.EncodeToString(e.Digest[:]), Chain: hex.EncodeToString(e.Chain[:]), Raw: e.Raw,
	}
	if content, ok := ReadContent(e); x.openSealed && ok && content.Sealed && !IsSealed(content.Payload) { // e.Key opened it
		line.Key, line.Opened = e.Key, &content.Payload
	}
	return x.writeLine(line)
}

// Seal writes the last line: a signature over everything written so far, by the agent self with key.
func (x *Exporter) Seal(self wire.AgentID, key *signing.PrivateKey) error {
	seal, err := key.SignValue(wire.Obj(
		wire.Member{Key: "agentmesh_export", Value: wire.Text(ExportFormat)},
		wire.Member{Key: "self", Value: wire.Text(string(self))},
		wire.Member{Key: "sha256", Value: wire.Text(hex.EncodeToString(x.sum.Sum(nil)))},
	))
	if err != nil {
		return fmt.Errorf("sign export: %w", err)
	}
	return x.writeLine(seal)
}

// ErrExport means that an export was changed or is incomplete.
var ErrExport = errors.New("conversations: the export is broken")

// ExportReport describes the content of an intact export.
type ExportReport struct {
	ExportHead
	Verified int // messages with a signature that a key of their sender verifies
	// Unsigned counts messages without a signature: messages of a foreign peer, and error answers.
	Unsigned int
	Sealed   int // messages with a sealed payload; Opened counts those whose content the export contains
	Opened   int
}

// maxExportLine bounds a line. A message in base64 has 4/3 of its size, its opened payload up to 6 times its size,
// because a byte may become an escape of six bytes; the rest is for the other members.
const maxExportLine = 8*wire.MaxMessage + 64<<10

// VerifyExport reads an export. It checks that no line was changed, dropped, added or moved, that every message of the
// exporting node is signed, that every signature is by a key of its sender, and that the exporting node signed the
// whole file. It cannot prove who owns the keys: compare their fingerprints. Errors match [ErrExport] and name the
// line.
func VerifyExport(r io.Reader) (ExportReport, error) {
	v := exportVerifier{sum: sha256.New(), keys: make(map[wire.AgentID][]*signing.PublicKey)}
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 64<<10), maxExportLine)
	n := 0
	for lines.Scan() {
		n++
		if v.sealRead {
			return v.report, fmt.Errorf("%w: line %d: there is text after the seal", ErrExport, n)
		}
		if err := v.checkLine(n, lines.Bytes()); err != nil {
			return v.report, fmt.Errorf("%w: line %d: %w", ErrExport, n, err)
		}
	}
	switch err := lines.Err(); {
	case err != nil:
		return v.report, fmt.Errorf("%w: line %d: %w", ErrExport, n+1, err)
	case !v.sealRead:
		return v.report, fmt.Errorf("%w: the seal is missing, so the end of the file was cut off", ErrExport)
	}
	return v.report, nil
}

type exportVerifier struct {
	report   ExportReport
	keys     map[wire.AgentID][]*signing.PublicKey
	sum      hash.Hash // of all lines before the seal
	chain    [32]byte  // chain hash of the last entry
	entries  uint64    // number of entries read
	sealRead bool
}

func (v *exportVerifier) checkLine(n int, text []byte) error {
	tree, err := wire.ParseLimits(text, wire.MaxDepth+1, wire.MaxValues+100) // the limits of an opened payload, plus the line around it
	if err != nil {
		return err
	}
	switch {
	case n == 1:
		err = v.readHead(text)
	case tree.GetStr("sha256") != "":
		return v.checkSeal(tree)
	default:
		err = v.checkEntry(text)
	}
	v.sum.Write(text)
	v.sum.Write([]byte("\n"))
	return err
}

func (v *exportVerifier) readHead(text []byte) error {
	h := &v.report.ExportHead
	if err := decodeStrict(text, h); err != nil {
		return err
	}
	if h.Format != ExportFormat {
		return fmt.Errorf("the file is not an export of a conversation (%s)", ExportFormat)
	}
	for _, k := range h.Keys {
		key, err := signing.ParsePublicKey(k.PublicKey)
		if err != nil {
			return fmt.Errorf("key of %s: %w", k.Agent, err)
		}
		v.keys[k.Agent] = append(v.keys[k.Agent], key)
	}
	return nil
}

func (v *exportVerifier) checkEntry(text []byte) error {
	var x exportEntry
	if err := decodeStrict(text, &x); err != nil {
		return err
	}
	e := store.Entry{N: x.N, Out: x.Out, At: x.At, MessageID: x.MessageID, Raw: x.Raw}
	if err := errors.Join(unhex(e.Digest[:], x.Digest), unhex(e.Chain[:], x.Chain)); err != nil {
		return err
	}
	var err error
	if v.chain, err = Verify(v.chain, v.entries, []store.Entry{e}); err != nil {
		return err
	}
	v.entries++
	if err := v.checkMessage(e); err != nil {
		return err
	}
	return v.checkOpening(e, x)
}

// checkOpening counts a sealed payload, and checks that the opened payload in the line is its content.
func (v *exportVerifier) checkOpening(e store.Entry, x exportEntry) error {
	content, ok := ReadContent(e)
	if !ok || !content.Sealed {
		if x.Opened != nil || len(x.Key) > 0 {
			return errors.New("the line opens a payload that is not sealed")
		}
		return nil
	}
	v.report.Sealed++
	if x.Opened == nil && len(x.Key) == 0 {
		return nil
	}
	opened, err := openWith(x.Key, content.Payload)
	if err != nil {
		return err
	}
	if x.Opened == nil || !bytes.Equal(signing.Canonical(*x.Opened, signing.JCS), signing.Canonical(opened, signing.JCS)) {
		return errors.New("the opened payload is not the one that was sealed")
	}
	v.report.Opened++
	return nil
}

// checkMessage checks that the message of an entry names the right sender and conversation and matches the digest of
// the entry, and that a key of the sender verifies it. It only counts an unsigned message of the peer.
func (v *exportVerifier) checkMessage(e store.Entry) error {
	sender := wire.AgentID(v.report.Peer)
	if e.Out {
		sender = v.report.Self
	}
	tree, err := wire.ParseObject(e.Raw)
	isForeign := !e.Out && len(v.keys[sender]) == 0 // an unsigned foreign message may have its own member "signature"
	if err != nil || isForeign || tree.GetStr("signature") == "" {
		if e.Out {
			return errors.New("a message of the exporting node is not signed")
		}
		v.report.Unsigned++
		return nil
	}
	bare := tree.Without("signature")
	if tree.GetStr("from") != string(sender) {
		return fmt.Errorf("the message is from %q, not from %q", tree.GetStr("from"), sender)
	}
	if id := tree.GetStr("conversation_id"); id != string(v.report.Conversation) {
		return errors.New("the message belongs to another conversation")
	}
	if !v.isSignedBy(sender, tree, e.At) {
		return fmt.Errorf("no key of %s in the export verifies the message", sender)
	}
	if !slices.ContainsFunc(signing.Forms(), func(f signing.Form) bool { return sha256.Sum256(signing.Canonical(bare, f)) == e.Digest }) {
		return errors.New("the digest does not match the message")
	}
	v.report.Verified++
	return nil
}

func (v *exportVerifier) checkSeal(tree wire.Value) error {
	switch {
	case v.entries != v.report.Entries:
		return fmt.Errorf("the head names %d entries, but the file has %d", v.report.Entries, v.entries)
	case v.entries > 0 && v.report.Chain != hex.EncodeToString(v.chain[:]):
		return errors.New("the chain hash of the head does not match the last entry")
	case tree.GetStr("agentmesh_export") != ExportFormat || tree.GetStr("self") != string(v.report.Self):
		return errors.New("the seal is not of this format, or does not name the exporting node")
	case tree.GetStr("sha256") != hex.EncodeToString(v.sum.Sum(nil)):
		return errors.New("a line before the seal was changed")
	}
	v.sealRead = true
	if !v.isSignedBy(v.report.Self, tree, v.report.Exported) {
		return errors.New("no key of the exporting node verifies the seal")
	}
	return nil
}

// isSignedBy reports whether a key of an agent in the head verifies the signature of tree.
func (v *exportVerifier) isSignedBy(agent wire.AgentID, tree wire.Value, at time.Time) bool {
	return slices.ContainsFunc(v.keys[agent], func(key *signing.PublicKey) bool {
		_, err := key.VerifyValue(tree.Without("signature"), tree.GetStr("signature"), signing.AnyTime(), at)
		return err == nil
	})
}

func decodeStrict(text []byte, v any) error {
	in := json.NewDecoder(bytes.NewReader(text))
	in.DisallowUnknownFields()
	return in.Decode(v)
}

// unhex decodes text into dst, and fails unless it fills dst exactly.
func unhex(dst []byte, text string) error {
	if len(text) == hex.EncodedLen(len(dst)) {
		if _, err := hex.Decode(dst, []byte(text)); err == nil {
			return nil
		}
	}
	return errors.New("a hash is not 64 hexadecimal digits")
}
