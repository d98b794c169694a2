//go:build linux

package browsertest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// WebKit is a window of WebKitGTK, the engine of Safari, which WebDriver drives. Its methods fail the test on an error.
type WebKit struct {
	t       testing.TB
	session string // URL
}

// StartWebKit opens a window on a virtual screen, with the color scheme light or dark. It closes with the test. Without the
// programs, the test is skipped or fails; see [Required].
func StartWebKit(t testing.TB, scheme string) *WebKit {
	t.Helper()
	driver, err := exec.LookPath("WebKitWebDriver")
	xvfb, err2 := exec.LookPath("xvfb-run")
	if err != nil || err2 != nil {
		if os.Getenv(Required) == "required" {
			t.Fatalf("%s=required, but WebKitWebDriver or xvfb-run is not installed", Required)
		}
		t.Skipf("WebKitWebDriver or xvfb-run is not installed; %s=required makes this a failure", Required)
	}
	browsers, err := filepath.Glob("/usr/lib/*/webkit2gtk-4.*/MiniBrowser")
	if err != nil || len(browsers) == 0 {
		t.Fatalf("the window of WebKitGTK is missing: %v", err)
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := free.Addr().(*net.TCPAddr).Port
	free.Close()
	cmd := exec.Command(xvfb, "-a", "-s", "-screen 0 1400x1000x24", driver, "--port="+strconv.Itoa(port))
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "WEBKIT_DISABLE_COMPOSITING_MODE=1", "GTK_THEME="+map[string]string{"light": "Adwaita", "dark": "Adwaita:dark"}[scheme], "WEBKIT_DISABLE_SANDBOX_THIS_IS_DANGEROUS=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w := &WebKit{t: t, session: fmt.Sprintf("http://127.0.0.1:%d/session", port)}
	t.Cleanup(func() {
		if w.session != "" {
			if req, err := http.NewRequest(http.MethodDelete, w.session, nil); err == nil {
				if resp, err := http.DefaultClient.Do(req); err == nil {
					resp.Body.Close()
				}
			}
		}
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // with the screen, the driver and the window
		_ = cmd.Wait()
	})
	var made struct{ SessionID string }
	options := map[string]any{"binary": browsers[len(browsers)-1], "args": []string{"--automation"}}
	order := map[string]any{"capabilities": map[string]any{"alwaysMatch": map[string]any{"webkitgtk:browserOptions": options}}}
	for until := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		if err := w.call(http.MethodPost, "", order, &made); err == nil {
			break
		} else if time.Now().After(until) {
			t.Fatalf("start WebKit: %v", err)
		}
	}
	w.session += "/" + made.SessionID
	return w
}

// call calls an operation of WebDriver.
func (w *WebKit) call(method, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequest(method, w.session+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s", method, path, answer)
	}
	return json.Unmarshal(answer, &struct{ Value any }{out})
}

func (w *WebKit) must(method, path string, in, out any) {
	w.t.Helper()
	if err := w.call(method, path, in, out); err != nil {
		w.t.Fatalf("WebKit: %v", err)
	}
}

// Open goes to an address.
func (w *WebKit) Open(address string) {
	w.t.Helper()
	w.must(http.MethodPost, "/url", map[string]string{"url": address}, nil)
}

// Size sets the size of the window, in pixels.
func (w *WebKit) Size(width, height int) {
	w.t.Helper()
	w.must(http.MethodPost, "/window/rect", map[string]int{"width": width, "height": height}, nil)
}

// Eval sets out to the result of a script.
func (w *WebKit) Eval(script string, out any) {
	w.t.Helper()
	w.must(http.MethodPost, "/execute/sync", map[string]any{"script": "return " + script, "args": []any{}}, out)
}

// Until waits until a script returns true.
func (w *WebKit) Until(script string) {
	w.t.Helper()
	for until := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		var ok bool
		if err := w.call(http.MethodPost, "/execute/sync", map[string]any{"script": "return !!(" + script + ")", "args": []any{}}, &ok); err == nil && ok {
			return
		}
		if time.Now().After(until) {
			var text string
			w.Eval("document.body.innerText", &text)
			w.t.Fatalf("%s never came true; the page shows\n%s", script, text)
		}
	}
}

// Shows waits until the page shows a text.
func (w *WebKit) Shows(text string) {
	w.t.Helper()
	w.Until("document.body.innerText.includes(" + strconv.Quote(text) + ")")
}

func (w *WebKit) element(selector string) string {
	w.t.Helper()
	var found map[string]string
	w.must(http.MethodPost, "/element", map[string]string{"using": "css selector", "value": selector}, &found)
	for _, id := range found {
		return "/element/" + id
	}
	return ""
}

// Click clicks an element.
func (w *WebKit) Click(selector string) {
	w.t.Helper()
	w.must(http.MethodPost, w.element(selector)+"/click", struct{}{}, nil)
}

// Type types into an element. "\uE007" is Enter, "\uE008" holds Shift until it comes again.
func (w *WebKit) Type(selector, keys string) {
	w.t.Helper()
	w.must(http.MethodPost, w.element(selector)+"/value", map[string]string{"text": keys}, nil)
}
