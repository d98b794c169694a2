// Package browsertest starts Chromium for tests of pages. It is for tests only.
package browsertest

import (
	"context"
	"os"
	"os/exec"
	"testing"

	"github.com/chromedp/chromedp"
)

// Required is the variable that, set to "required", makes a missing program a failure of the tests that need it.
const Required = "AGENTMESH_TOOLS"

// Start starts a browser with an empty profile and returns its context. It stops with the test. Where there is no
// Chromium the test skips, unless [Required] says that there must be one.
func Start(t testing.TB) context.Context {
	t.Helper()
	path := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"} {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	switch {
	case path != "":
	case os.Getenv(Required) == "required":
		t.Fatalf("%s is required, and there is no Chromium", Required)
	default:
		t.Skipf("no Chromium here; %s=required makes that a failure", Required)
	}
	opts := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.UserDataDir(t.TempDir()),
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-sync", true),
	)
	alloc, cancelAlloc := chromedp.NewExecAllocator(context.Background(), opts...)
	browser, cancel := chromedp.NewContext(alloc)
	t.Cleanup(func() {
		if err := chromedp.Cancel(browser); err != nil { // waits for the process, so that its directory can go
			t.Logf("stop the browser: %v", err)
		}
		cancel()
		cancelAlloc()
	})
	if err := chromedp.Do(browser); err != nil {
		t.Fatalf("start %s: %v", path, err)
	}
	return browser
}
