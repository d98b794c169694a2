package manual

import "testing"

// TestRoffEscapes: text that looks like roff stays text.
func TestRoffEscapes(t *testing.T) {
	for _, tc := range []struct{ in, want string }{
		{".PP is text", `\&.PP is text`},
		{"'quoted", `\(aqquoted`},
		{`a\fBb`, `a\efBb`},
		{"--json", `\-\-json`},
		{"Zoë", `Zo\[u00EB]`},
	} {
		if got := roffLine(tc.in); got != tc.want {
			t.Errorf("roffLine(%q) = %q, want %q", tc.in, got, tc.want)
		}
	}
}
