package notify_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/store"
)

func newClient(t *testing.T) *client.HTTP {
	t.Helper()
	h := client.NewHTTP(client.HTTPConfig{})
	t.Cleanup(h.Close)
	return h
}

var twoNotices = notify.Batch{
	ID: "note_1", Urgent: true, More: 3,
	Notices: []notify.Notice{
		{ID: "note_1", Kind: "handoff", Title: "somebody asks for you", Text: "Ann (am_ann)", At: time.Unix(1700000000, 0), Peer: "am_ann"},
		{ID: "note_2", Kind: notify.Agreed, Title: "Coffee, \r\nBcc: x", At: time.Unix(1700000000, 0)},
	},
}

// TestWebhookFormats: a webhook gets a signed document. An ntfy server gets a text, with title and priority in
// headers, and a bearer token. Text of a peer never gets into a header.
func TestWebhookFormats(t *testing.T) {
	secret, err := client.ParseWebhookSecret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	if err != nil {
		t.Fatal(err)
	}
	var got *http.Request
	var body string
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		got, body = r, string(data)
	}))
	defer srv.Close()
	hook := notify.Webhook{URL: srv.URL + "/topic", Secrets: []client.WebhookSecret{secret}, HTTP: newClient(t)}
	if err := hook.Send(t.Context(), twoNotices); err != nil {
		t.Fatal(err)
	}
	if want := secret.Sign("note_1", got.Header.Get("Webhook-Timestamp"), []byte(body)); got.Header.Get("Webhook-Signature") != want {
		t.Errorf("signature = %q, want %q", got.Header.Get("Webhook-Signature"), want)
	}
	for _, want := range []string{`"type":"agentmesh.notices"`, `"title":"AgentMesh: 5 notices"`, `"kind":"handoff"`, `"more":3`, `"peer":"am_ann"`} {
		if !strings.Contains(body, want) {
			t.Errorf("document %s lacks %s", body, want)
		}
	}
	hook = notify.Webhook{URL: srv.URL + "/topic", Format: notify.Ntfy, Token: "tk_secret", HTTP: newClient(t)}
	if err := hook.Send(t.Context(), twoNotices); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"Title": "AgentMesh: 5 notices", "Priority": "high", "Authorization": "Bearer tk_secret", "Content-Type": "text/plain; charset=utf-8",
		"Webhook-Signature": "", "Bcc": "",
	} {
		if v := got.Header.Get(name); v != want {
			t.Errorf("%s = %q, want %q", name, v, want)
		}
	}
	if !goldentest.Says(t, "ntfy", body) {
		t.Errorf("text = %q", body)
	}
}

// TestLinksInNotices: a target gets the link to the question, but the link is not stored. A notice whose link cannot be
// made is sent without it.
func TestLinksInNotices(t *testing.T) {
	const link = "https://phone.example/owner/link/ask_1?once=ABC"
	bubble(t, func(t *testing.T, db store.Store) {
		r := &recorder{}
		b := startBox(t, db, notify.Config{Target: r, Link: func(_ context.Context, ask string, _ time.Time) (string, error) {
			if ask != "ask_1" {
				return "", errors.New("no link")
			}
			return link, nil
		}})
		defer b.stop()
		var changes []store.Change
		for _, ask := range []string{"ask_1", "ask_2", ""} {
			time.Sleep(time.Millisecond)
			changes = append(changes, b.Change(notify.Notice{Kind: "approval", Title: "a message waits", At: time.Now(), Ask: ask}))
		}
		if err := db.Records().Apply(t.Context(), changes, time.Now()); err != nil {
			t.Fatal(err)
		}
		b.OnCommit(changes)
		time.Sleep(time.Hour)
		got := r.batches()
		if len(got) != 1 || len(got[0].Notices) != 3 || got[0].Notices[0].Link != link || got[0].Notices[1].Link+got[0].Notices[2].Link != "" {
			t.Fatalf("batches = %+v", got)
		}
		if want := "a message waits\n" + link + "\na message waits\na message waits\n"; got[0].Text() != want {
			t.Errorf("text = %q, want %q", got[0].Text(), want)
		}
		list, _, err := b.List(t.Context(), "", 10, time.Now())
		if err != nil || len(list) != 3 || list[0].Ask != "ask_1" || list[0].Link != "" {
			t.Errorf("stored = %+v, %v", list, err)
		}
	})
}

// TestLinkInAWebhook: a document has the link as a member, and ntfy opens it at a touch.
func TestLinkInAWebhook(t *testing.T) {
	var click, body string
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		click, body = r.Header.Get("Click"), string(data)
	}))
	defer srv.Close()
	batch := notify.Batch{ID: "note_1", Notices: []notify.Notice{{ID: "note_1", Kind: "approval", Title: "a message waits", Ask: "ask_1", Link: "https://phone.example/l"}}}
	for _, c := range []struct {
		format      notify.Format
		click, want string
	}{
		{notify.JSON, "", `"link":"https://phone.example/l"`},
		{notify.Ntfy, "https://phone.example/l", "a message waits\nhttps://phone.example/l\n"},
	} {
		if err := (notify.Webhook{URL: srv.URL, Format: c.format, HTTP: newClient(t)}).Send(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
		if click != c.click || !strings.Contains(body, c.want) {
			t.Errorf("%s: Click %q, body %s", c.format, click, body)
		}
	}
}

// TestWebhookFails: a target that refuses, is unreachable, floods or hangs is an error, which does not contain the
// path, because the path may be a secret.
func TestWebhookFails(t *testing.T) {
	release := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/secret/500":
			w.WriteHeader(http.StatusInternalServerError)
		case "/secret/moved":
			http.Redirect(w, r, "/secret/ok", http.StatusTemporaryRedirect)
		case "/secret/hangs":
			select {
			case <-release:
			case <-r.Context().Done():
			}
		case "/secret/floods":
			w.WriteHeader(http.StatusBadGateway)
			for range 1 << 14 {
				if _, err := w.Write(make([]byte, 64<<10)); err != nil {
					return
				}
			}
		}
	}))
	defer srv.Close()
	defer close(release)
	gone := httptest.NewServer(nil)
	gone.Close()
	h := newClient(t)
	for _, target := range []string{srv.URL + "/secret/500", srv.URL + "/secret/moved", srv.URL + "/secret/hangs", srv.URL + "/secret/floods", gone.URL + "/secret"} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		err := notify.Webhook{URL: target, Format: notify.Ntfy, HTTP: h}.Send(ctx, twoNotices)
		cancel()
		if err == nil || strings.Contains(fmt.Sprint(err), "secret") {
			t.Errorf("%s: error %v, want one that names no path", target, err)
		}
	}
}
