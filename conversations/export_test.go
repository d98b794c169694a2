package conversations

import (
	"bytes"
	"encoding/hex"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

// TestExportOfForeignPeer: a message of another protocol may have a member with the name signature, and the export is
// intact nevertheless.
func TestExportOfForeignPeer(t *testing.T) {
	key, at := mustEd25519(t), time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	e := store.Entry{N: 1, At: at, MessageID: "1", Raw: []byte(`{"signature":"x","text":"hello"}`)}
	e.Chain = Link([32]byte{}, e)
	var out bytes.Buffer
	x := NewExporter(&out, false)
	for _, err := range []error{
		x.Head(ExportHead{
			Self: "am_chris", Peer: "a2a:peer", Conversation: "conv_1", Exported: at, Entries: 1, Chain: hex.EncodeToString(e.Chain[:]),
			Keys: []ExportKey{{Agent: "am_chris", PublicKey: key.PublicText()}},
		}),
		x.Entry(e),
		x.Seal("am_chris", key),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if report, err := VerifyExport(&out); err != nil || report.Unsigned != 1 {
		t.Errorf("VerifyExport = %v with %d unsigned messages, want one", err, report.Unsigned)
	}
}
