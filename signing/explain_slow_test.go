//go:build slow && !race

package signing

import (
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestExplainRealPrograms lets Python and Node make the bytes with the calls that their users write.
func TestExplainRealPrograms(t *testing.T) {
	key := benchKey()
	for _, tt := range []struct{ name, program, flag, code, want string }{
		{"json.dumps", "python3", "-c", `import json,sys; sys.stdout.write(json.dumps(json.loads(sys.argv[1])))`, "the keys are not sorted, and there are spaces after commas and colons"},
		{"json.dumps with sort_keys", "python3", "-c", `import json,sys; sys.stdout.write(json.dumps(json.loads(sys.argv[1]), sort_keys=True))`, "there are spaces after commas and colons"},
		{"json.dumps with indent", "python3", "-c", `import json,sys; sys.stdout.write(json.dumps(json.loads(sys.argv[1]), sort_keys=True, indent=2))`, "the JSON is indented"},
		{"JSON.stringify", "node", "-e", `process.stdout.write(JSON.stringify(JSON.parse(process.argv[1])))`, "the keys are not sorted"},
		{"JSON.stringify with 2", "node", "-e", `process.stdout.write(JSON.stringify(JSON.parse(process.argv[1]), null, 2))`, "the keys are not sorted, and the JSON is indented"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			program, err := exec.LookPath(tt.program)
			if err != nil {
				t.Skip(tt.program + " is not installed")
			}
			out, err := exec.CommandContext(t.Context(), program, tt.flag, tt.code, explainable).Output()
			if err != nil {
				t.Fatal(err)
			}
			signature, err := key.Sign(out)
			if err != nil {
				t.Fatal(err)
			}
			d := Explain(parseTree(t, explainable), signature, []*PublicKey{key.Public()}, AnyTime(), time.Now(), 64)
			if got := strings.Join(d.Mistakes, ", and "); got != tt.want || string(d.Signed) != string(out) {
				t.Errorf("Explain() = %q for\n%s\nwant %q", got, out, tt.want)
			}
		})
	}
}
