package site

import (
	"strings"
	"testing"
)

func TestQR(t *testing.T) {
	code := NewQR("https://agent.example/agentmesh")
	if code == nil || code.Size < 21+2*quietZone || !strings.HasPrefix(code.Path, "M4 4h7v1h-7z") { // a finder pattern begins each code
		t.Errorf("code %+v", code)
	}
	if NewQR(strings.Repeat("x", 2048)) != nil {
		t.Error("a code that nobody can read")
	}
}
