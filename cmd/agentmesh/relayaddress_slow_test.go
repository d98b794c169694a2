//go:build slow

package main

import (
	"bytes"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestRelayUnderOtherAddress: a mailbox under an address that leads to a directory, but is not its own, gets no
// mail. The status says so, and names the directory's address.
func TestRelayUnderOtherAddress(t *testing.T) {
	env := slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "AGENTMESH_") })
	hub, err := startServe(filepath.Join(t.TempDir(), "hub"), []string{"--roles=directory"}, env)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { hub.Process.Signal(os.Interrupt); hub.Wait() })
	target, err := url.Parse(strings.TrimSuffix(hub.info.Directory, "/v1"))
	if err != nil {
		t.Fatal(err)
	}
	forwarder := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target); r.Out.Host = r.In.Host }})
	t.Cleanup(forwarder.Close)
	other := forwarder.URL + "/v1"
	home := filepath.Join(t.TempDir(), "sarah")
	sarah, err := startServe(home, []string{"--roles=node", "--directory=" + other, "--via-relay=" + other}, env)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sarah.Process.Signal(os.Interrupt); sarah.Wait() })
	var out bytes.Buffer
	for range 50 {
		out.Reset()
		run(t.Context(), []string{"--data", home, "status"}, strings.NewReader(""), &out, &out)
		if strings.Contains(out.String(), "its own address is "+hub.info.Directory) {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Errorf("status does not name the address %s:\n%s", hub.info.Directory, out.String())
}
