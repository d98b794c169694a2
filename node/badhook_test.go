package node_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// TestHookThatPoursOut: a hook that answers a gigabyte is cut off after what an answer may have, and costs no memory.
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
	_, err := node.WebhookHook{URL: url, Secrets: secrets(t, whsec1), HTTP: c}.Handle(t.Context(), aCall(t))
	runtime.ReadMemStats(&after)
	if failed, ok := errors.AsType[*node.HookError](err); !ok || failed.Fault != node.HookTooLarge {
		t.Errorf("error %v, want %s", err, node.HookTooLarge)
	}
	if grown := int64(after.TotalAlloc) - int64(before.TotalAlloc); grown > 64<<20 {
		t.Errorf("%d MiB were allocated", grown>>20)
	}
	if poured.Load() >= 1<<30 {
		t.Error("all of it was taken")
	}
}

// TestHookCannotLeaveItsConversation: whatever a hook names, its answer goes to the sender of the message, in the
// conversation of the message.
func TestHookCannotLeaveItsConversation(t *testing.T) {
	for name, said := range map[string]string{
		"in the payload":  `{"payload":{"action":"confirmed","conversation_id":"conv_other","to":"am_mallory","metadata":{"in_reply_to":"msg_other"}}}`,
		"beside it":       `{"payload":{"action":"confirmed"},"conversation_id":"conv_other"}`,
		"as the document": `{"conversation_id":"conv_other"}`,
	} {
		t.Run(name, func(t *testing.T) {
			url, c := hookServer(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, said) })
			mesh := meshtest.InMemory(t)
			chris, ann := mesh.Stranger("chris"), mesh.Stranger("ann")
			hook := node.WebhookHook{URL: url, Secrets: secrets(t, whsec1), HTTP: c}
			sarah := mesh.Node("sarah", hooked(hook.Handle))
			other := ann.Draft(sarah.ID(), "mesh.message", hello)
			other.Conversation = "conv_other"
			sarah.Post(ann.Sign(other))
			before := transcript(t, sarah, store.ConvKey{Peer: string(ann.ID), ID: "conv_other"})
			a := sarah.Post(chris.Sign(in("conv_one", chris.Draft(sarah.ID(), wire.Deliver, hello))))
			m := a.Message(t, sarah)
			if m.Conversation != "conv_one" || m.To != chris.ID || strings.Contains(string(a.Body), "msg_other") {
				t.Errorf("answer = %s", a.Body)
			}
			equal(t, "the other conversation", transcript(t, sarah, store.ConvKey{Peer: string(ann.ID), ID: "conv_other"}), before)
		})
	}
}

// TestReminderIsARunOfItsOwn: the reminder has an id of its own, or a receiver that drops repetitions would drop it;
// a repetition of the reminder has the same.
func TestReminderIsARunOfItsOwn(t *testing.T) {
	var ids, texts []string
	url, c := hookServer(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		ids = append(ids, r.Header.Get("Idempotency-Key")+r.Header.Get("Webhook-Id"))
		texts = append(texts, string(body))
		w.WriteHeader(http.StatusAccepted)
	})
	for _, h := range []node.Handler{
		node.OpenClawHook{URL: url, Token: "gateway-token", HTTP: c},
		node.WebhookHook{URL: url, Secrets: secrets(t, whsec1), HTTP: c},
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
	equal(t, "ids", ids, []string{"msg_1", "msg_1-reminder", "msg_1-reminder", "msg_1", "msg_1-reminder", "msg_1-reminder"})
	if !strings.Contains(texts[1], "Reminder:") || strings.Contains(texts[0], "Reminder:") || !strings.Contains(texts[4], `"message.reminder"`) {
		t.Errorf("texts = %q", texts)
	}
}
