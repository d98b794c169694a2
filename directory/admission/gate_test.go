package admission

import (
	"errors"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/wire"
)

// TestCheckBearer: the error for a malformed bearer token states the required form, not that the token is missing.
func TestCheckBearer(t *testing.T) {
	for _, tt := range []struct {
		bearer string
		local  bool
		want   string
	}{
		{strings.Repeat("x", 16), false, ""},
		{strings.Repeat("x", 256), false, ""},
		{"x", true, ""},
		{"", false, wire.ErrNoBearer.Message},
		{"", true, wire.ErrNoBearer.Message},
		{strings.Repeat("x", 15), false, "a bearer token is required: it must have 16 to 256 visible ASCII characters"},
		{strings.Repeat("x", 257), true, "a bearer token is required: it must have 1 to 256 visible ASCII characters"},
		{"sixteen letters\x7f", false, "visible ASCII"},
		{"sixteen letters ü", false, "visible ASCII"},
	} {
		err := (&Gate{cfg: Config{Local: tt.local}}).CheckBearer(tt.bearer)
		if tt.want == "" && err == nil {
			continue
		}
		refused, ok := errors.AsType[*wire.Error](err)
		if !ok || refused.Status != 401 || !strings.Contains(refused.Message, tt.want) || tt.bearer == "" && refused.Message != tt.want {
			t.Errorf("checkBearer(%q) = %v, want %q", tt.bearer, err, tt.want)
		}
	}
}
