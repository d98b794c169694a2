// Package browsertest starts Chromium for tests of pages. It is for tests only.
package browsertest

import (
	"context"
	"os"
	"os/exec"
	"testing"

	"github.com/chromedp/chromedp"
)

// Required is the name of an environment variable. With the value "required", tests fail instead of being skipped if a
// program that they need is missing.
const Required = "AGENTMESH_TOOLS"

// Start starts a browser with an empty profile and returns its context. The browser stops with the test. Without
// Chromium, the test is skipped or fails; see [Required].
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
		t.Fatalf("%s=required, but Chromium is not installed", Required)
	default:
		t.Skipf("Chromium is not installed; %s=required makes this a failure", Required)
	}
	opts := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.UserDataDir(t.TempDir()),
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-sync", true),
	)
	alloc, cancelAlloc := chromedp.NewExecAllocator(context.Background(), opts...)
	browser, cancel := chromedp.NewContext(alloc)
	t.Cleanup(func() {
		if err := chromedp.Cancel(browser); err != nil { // waits for the process, so that the test can remove its directory
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
