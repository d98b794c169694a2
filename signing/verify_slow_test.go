//go:build slow && !race

package signing

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/cpu"
)

const noVectors = "cpu.avx2=off"

// TestSameVerdictWithoutVectors repeats the tests above with the code for processors without AVX2.
func TestSameVerdictWithoutVectors(t *testing.T) {
	if strings.Contains(os.Getenv("GODEBUG"), noVectors) {
		if cpu.X86.HasAVX2 {
			t.Error("AVX2 is still in use")
		}
		return
	}
	if runtime.GOARCH != "amd64" || !cpu.X86.HasAVX2 {
		t.Skip("the tests above already ran without AVX2")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, "-test.run=SameVerdict", "-test.v")
	cmd.Env = append(os.Environ(), fmt.Sprintf("GODEBUG=%s,%s", os.Getenv("GODEBUG"), noVectors))
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("--- PASS: TestSameVerdictSmallOrder")) {
		t.Errorf("%v\n%s", err, out)
	}
}
