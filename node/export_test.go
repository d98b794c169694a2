package node_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
)

// exportLines returns the lines of an export of a conversation between two nodes, as the first node sees it.
func exportLines(t *testing.T) []string {
	t.Helper()
	mesh := meshtest.New(t)
	sarah := mesh.Node("sarah", open)
	chris := mesh.Node("chris", open)
	deliver, err := wire.ParseObject([]byte(hello))
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		mustSend(t, chris.Node, node.Outgoing{To: sarah.ID(), Intent: wire.Deliver, Payload: deliver, Conv: "conv_proof", Via: "owner"}, 10*time.Second)
	}
	answer := chris.Ask(http.MethodGet, "/conversations/conv_proof/export", nil)
	if answer.Status != http.StatusOK {
		t.Fatalf("export: %d %s", answer.Status, answer.Body)
	}
	return strings.SplitAfter(strings.TrimSuffix(string(answer.Body), "\n"), "\n")
}

// TestExport: an export can be verified without other data. Changing, dropping, moving or repeating any line is
// detected, and so is a changed byte in it.
func TestExport(t *testing.T) {
	lines := exportLines(t)
	whole := strings.Join(lines, "")
	report, err := conversations.VerifyExport(strings.NewReader(whole))
	if err != nil {
		t.Fatal(err)
	}
	if report.Entries != 6 || report.Verified != 6 || report.Unsigned != 0 || report.Conversation != "conv_proof" || len(report.Keys) < 2 {
		t.Errorf("report = %+v, want six verified messages", report)
	}
	broken := func(what, text string) {
		t.Helper()
		if _, err := conversations.VerifyExport(strings.NewReader(text)); !errors.Is(err, conversations.ErrExport) {
			t.Errorf("%s: %v, want ErrExport", what, err)
		}
	}
	join := func(parts ...[]string) string {
		var b strings.Builder
		for _, p := range parts {
			b.WriteString(strings.Join(p, ""))
		}
		return b.String()
	}
	for i := range lines {
		broken("a line is missing", join(lines[:i], lines[i+1:]))
		broken("a line is there twice", join(lines[:i+1], lines[i:]))
		if i > 0 {
			broken("two lines are swapped", join(lines[:i-1], []string{lines[i] + "\n", lines[i-1]}, lines[i+1:]))
		}
		for at := 0; at < len(lines[i])-1; at += 7 {
			changed := []byte(lines[i])
			changed[at] ^= 1
			broken("a character was changed", join(lines[:i], []string{string(changed)}, lines[i+1:]))
		}
	}
	broken("cut in the middle", whole[:len(whole)/2])
	broken("empty", "")
	broken("something behind the seal", whole+"\n{}\n")
	broken("a second seal", whole+"\n"+lines[len(lines)-1])
	broken("a line without end", whole[:len(whole)-2]+strings.Repeat(" ", 2<<20))
}

// TestExportByAnother: a person who has the messages cannot forge the closing line of the node that exported them.
func TestExportByAnother(t *testing.T) {
	lines := exportLines(t)
	var b bytes.Buffer
	b.WriteString(strings.Join(lines[:len(lines)-1], ""))
	forger := meshtest.Key("forger")
	seal, err := forger.SignValue(wire.Obj(
		wire.Member{Key: "agentmesh_export", Value: wire.Text(conversations.ExportFormat)},
		wire.Member{Key: "self", Value: wire.Text("am_chris")},
		wire.Member{Key: "sha256", Value: wire.Text(strings.Repeat("0", 64))},
	))
	if err != nil {
		t.Fatal(err)
	}
	b.Write(seal.JSON())
	if _, err := conversations.VerifyExport(&b); !errors.Is(err, conversations.ErrExport) {
		t.Errorf("a closing line by another key: %v, want ErrExport", err)
	}
}

// TestExportSealedWrongly: the closing line must belong to this export, even if the node's own key signed it.
func TestExportSealedWrongly(t *testing.T) {
	lines := exportLines(t)
	closing, err := wire.ParseObject([]byte(lines[len(lines)-1]))
	if err != nil {
		t.Fatal(err)
	}
	head, err := wire.ParseObject([]byte(lines[0]))
	if err != nil {
		t.Fatal(err)
	}
	member := func(key, value string) wire.Value { return closing.With(key, wire.Text(value)) }
	for name, tc := range map[string]struct {
		head, closing wire.Value
		intact        bool
	}{
		"as it was":     {head: head, closing: closing, intact: true},
		"entry missing": {head: head.With("entries", wire.Int(7)), closing: closing},
		"other chain":   {head: head.With("chain", wire.Text(strings.Repeat("0", 64))), closing: closing},
		"other node":    {head: head, closing: member("self", "am_sarah")},
		"other format":  {head: head, closing: member("agentmesh_export", conversations.ExportFormat+"1")},
	} {
		t.Run(name, func(t *testing.T) {
			text := string(tc.head.JSON()) + "\n" + strings.Join(lines[1:len(lines)-1], "")
			sum := sha256.Sum256([]byte(text))
			signed, err := meshtest.Key("chris").SignValue(tc.closing.Without("signature").With("sha256", wire.Text(hex.EncodeToString(sum[:]))))
			if err != nil {
				t.Fatal(err)
			}
			_, err = conversations.VerifyExport(strings.NewReader(text + string(signed.JSON())))
			if tc.intact && err != nil || !tc.intact && !errors.Is(err, conversations.ErrExport) {
				t.Errorf("VerifyExport() = %v", err)
			}
		})
	}
}
