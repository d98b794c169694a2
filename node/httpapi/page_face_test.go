package httpapi

import (
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/wire"
)

// TestFace: the same agent has one face, another one with its name has another face, and no name is markup.
func TestFace(t *testing.T) {
	faces := make(map[string]bool)
	for i := range 1000 {
		id := wire.DeriveAgentID([]byte{byte(i), byte(i >> 8)})
		face := string(pageFace(id, "Sarah"))
		if face != string(pageFace(string(id), "Sarah")) {
			t.Fatalf("%s has two faces", id)
		}
		faces[face] = true
	}
	if len(faces) < 999 {
		t.Errorf("a thousand agents have %d faces", len(faces))
	}
	for name, want := range map[string]string{`<script>alert(1)</script>`: `data-initial="S"`, "": `data-initial=""`, "\u202e\x00": `data-initial=""`, "émile": `data-initial="É"`, "京都": `data-initial="京"`, `"><b>`: `data-initial="B"`} {
		if face := string(pageFace("am_x", name)); !strings.Contains(face, want) {
			t.Errorf("the face of %q is %s, want %s", name, face, want)
		}
	}
}
