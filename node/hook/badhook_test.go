package hook_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/hook"
)

// TestHookThatPoursOut: an answer of a gigabyte is cut off at the maximum size and costs no memory.
func TestHookThatPoursOut(t *testing.T) {
	var poured atomic.Int64
	url, c := hookServer(t, func(w http.ResponseWriter, _ *http.Request) {
		chunk := make([]byte, 1<<20)
		for range 1 << 10 {
			n, err := w.Write(chunk)
			if poured.Add(int64(n)); err != nil {
				return
			}
		}
	})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := hook.Webhook{URL: url, Secrets: secrets(t, whsec1), HTTP: c}.Handle(t.Context(), aCall(t))
	runtime.ReadMemStats(&after)
	if failed, ok := errors.AsType[*hook.Error](err); !ok || failed.Fault != hook.TooLarge {
		t.Errorf("error %v, want %s", err, hook.TooLarge)
	}
	if grown := int64(after.TotalAlloc) - int64(before.TotalAlloc); grown > 64<<20 {
		t.Errorf("%d MiB were allocated", grown>>20)
	}
	if poured.Load() >= 1<<30 {
		t.Error("the whole answer was read")
	}
}

// TestReminderIsARunOfItsOwn: a reminder has its own id, because a receiver that drops repeats would drop it
// otherwise. A repeat of the reminder has the same id.
func TestReminderIsARunOfItsOwn(t *testing.T) {
	var ids, texts []string
	url, c := hookServer(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		ids = append(ids, r.Header.Get("Idempotency-Key")+r.Header.Get("Webhook-Id"))
		texts = append(texts, string(body))
		w.WriteHeader(http.StatusAccepted)
	})
	for _, h := range []hook.Handler{
		hook.OpenClaw{URL: url, Token: "gateway-token", HTTP: c},
		hook.Webhook{URL: url, Secrets: secrets(t, whsec1), HTTP: c},
	} {
		for _, reminder := range []bool{false, true, true} {
			call := aCall(t)
			call.Reminder = reminder
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			_, err := h.Handle(ctx, call)
			cancel()
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	if want := []string{"msg_1", "msg_1-reminder", "msg_1-reminder", "msg_1", "msg_1-reminder", "msg_1-reminder"}; !slices.Equal(ids, want) {
		t.Errorf("ids = %q, want %q", ids, want)
	}
	if !strings.Contains(texts[1], "Reminder:") || strings.Contains(texts[0], "Reminder:") || !strings.Contains(texts[4], `"message.reminder"`) {
		t.Errorf("texts = %q", texts)
	}
}
