package wire

import (
	"crypto/sha256"
	"testing"
	"time"
)

// TestKeyProofText checks AM-62 to the byte.
func TestKeyProofText(t *testing.T) {
	got := string(KeyProofText("POST", "/v1/agents", "https://d.example/v1", "2026-02-19T10:30:00.000Z", sha256.Sum256([]byte("{}"))))
	want := "agentmesh-key-proof-v1\nPOST /v1/agents\nhttps://d.example/v1\n2026-02-19T10:30:00.000Z\n" +
		"44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a\n"
	if got != want {
		t.Errorf("KeyProofText = %q, want %q", got, want)
	}
}

func TestKeyProofHeader(t *testing.T) {
	p, ok := ParseKeyProof("t=2026-02-19T10:30:00.000Z, sig=AAAA==")
	want := KeyProof{Time: time.Date(2026, 2, 19, 10, 30, 0, 0, time.UTC), Stamp: "2026-02-19T10:30:00.000Z", Signature: "AAAA=="}
	if !ok || p != want {
		t.Errorf("ParseKeyProof = %+v, %v", p, ok)
	}
	if again, ok := ParseKeyProof(p.Header()); !ok || again != p {
		t.Errorf("the header does not survive: %s", p.Header())
	}
	for _, h := range []string{"", "t=2026-02-19T10:30:00Z", "sig=AAAA", "t=yesterday, sig=AAAA", "t=2026-02-19T10:30:00Z, sig=",
		"2026-02-19T10:30:00Z, sig=AAAA", "sig=AAAA, t=2026-02-19T10:30:00Z", "t=2026-02-19T10:30:00Z; sig=AAAA"} {
		if p, ok := ParseKeyProof(h); ok {
			t.Errorf("ParseKeyProof(%q) = %+v", h, p)
		}
	}
}
