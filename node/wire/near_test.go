package wire

import "testing"

func TestNear(t *testing.T) {
	words := []string{"capability", "urgency", "precision"}
	for word, want := range map[string]string{
		"capabilty": "capability", "capabilities": "capability", "urgent": "urgency", "Precision": "precision", "": "", "priority": "", "colour": "",
	} {
		if got := Near(word, words); got != want {
			t.Errorf("Near(%q) = %q, want %q", word, got, want)
		}
	}
}
