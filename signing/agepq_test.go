package signing

import (
	"strings"
	"testing"
)

// TestRecipientThatLooksPostQuantum: one X25519 recipient in 1024 begins with "age1pq". [ParsePrivateKey] once refused
// it as a post-quantum key, and the agent that had just been created with it did not start.
func TestRecipientThatLooksPostQuantum(t *testing.T) {
	for range 100_000 {
		identity, recipient, err := GenerateAge()
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(recipient, "age1pq") {
			continue
		}
		key, err := ParsePrivateKey([]byte("# public key: " + recipient + "\n" + identity + "\n"))
		if err != nil || key.PublicText() != recipient {
			t.Errorf("ParsePrivateKey of an identity with recipient %s = %v", recipient, err)
		}
		return
	}
	t.Fatal("no such key came up in 100,000")
}
