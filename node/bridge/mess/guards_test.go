package mess

import (
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/goldentest"
)

// TestNothingIsMergedAcrossRequesters: threads of two requesters are never merged: the consent of the first would end
// the other's request.
func TestNothingIsMergedAcrossRequesters(t *testing.T) {
	l := newLab(t)
	l.executor("bob")
	ours, theirs := l.request("agent", "{intent: a}"), l.request("another", "{intent: b}")
	for _, kind := range []string{"merge", "alternative"} {
		l.refuse(http.StatusConflict, "bob", "- suggestion: {id: s, type: "+kind+", re: ["+ours+", "+theirs+"], proposed: {}}")
	}
	l.refuse(http.StatusNotFound, "agent", "- suggestion: {id: s, type: merge, re: ["+theirs+", "+ours+"], proposed: {}}")
	for _, ref := range []string{ours, theirs} {
		if th := l.want(ref, thread.Received); len(th.Suggestions) != 0 {
			t.Errorf("%s has %v", ref, th.Suggestions)
		}
	}
}

// TestFetchChecksTheDigest: fetched content is stored only if it has the digest that the message names.
func TestFetchChecksTheDigest(t *testing.T) {
	l := newLab(t)
	ref := l.request("agent", "{intent: look}")
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("picture")) }))
	defer srv.Close()
	b := &Bridge{cfg: Config{HTTP: client.NewHTTP(client.HTTPConfig{Local: true}), Local: true}, x: l.Exchange, records: l.store.Records(), log: slog.New(slog.DiscardHandler)}
	r := reference{serial: 1, kind: "image", uri: srv.URL + "/api/v1/exchanges/x/shared/2026-01-31-001/attachments/att-001-image-a.png?token=t"}
	r.digest = strings.Repeat("0", 64)
	if _, err := b.fetchReference(t.Context(), &thread.Thread{Ref: ref}, r); statusOf(err) != http.StatusBadGateway || !goldentest.Refuses(t, "another content", err) {
		t.Errorf("another content: %v", err)
	}
	if names, err := l.Attachments(t.Context(), ref); err != nil || len(names) != 0 {
		t.Errorf("kept: %v, %v", names, err)
	}
	sum := sha256.Sum256([]byte("picture"))
	r.digest = strings.ToUpper(hex.EncodeToString(sum[:]))
	if a, err := b.fetchReference(t.Context(), &thread.Thread{Ref: ref}, r); err != nil || a.Size != len("picture") {
		t.Errorf("what was named: %+v, %v", a, err)
	}
}
