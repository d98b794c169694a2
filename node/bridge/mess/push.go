package mess

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/registry"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/wire"
)

// maxPushing bounds the executors that are notified at the same time, so that a slow one delays no other. While an
// executor is being notified, or all places are taken, further notifications are dropped.
const maxPushing = 16

const pushTime = 30 * time.Second

// pushes sends the notifications of executors (MESS-45). Each channel is tried once.
type pushes struct {
	http   *client.HTTP
	log    *slog.Logger
	places *waiting.Places // by executor
	all    sync.WaitGroup  // the notifications that are being sent
}

// send notifies an executor about a thread. It does not wait for the result.
func (p *pushes) send(ctx context.Context, c *registry.Executor, t *thread.Thread) {
	if c == nil {
		return
	}
	leave, ok := p.places.Enter(c.ID)
	if !ok {
		p.log.Info("a notification was dropped, because others are still being sent", "executor", c.ID, "thread", t.Ref)
		return
	}
	p.all.Go(func() {
		defer leave()
		p.sendToChannels(ctx, c, t)
	})
}

// sendToChannels notifies an executor through each of its channels.
func (p *pushes) sendToChannels(ctx context.Context, c *registry.Executor, t *thread.Thread) {
	text := fmt.Sprintf("[%s] %s (%s)", t.Priority, wire.OneLine(t.Intent, 200), t.Ref)
	for _, ch := range c.Notifications {
		var body []byte
		kind := "application/json"
		switch ch.Type {
		case "ntfy":
			body, kind = []byte(text), "text/plain"
		case "slack", "google_chat":
			body = wire.Obj(wire.TextField("text", text)).JSON()
		case "webhook":
			body = wire.Obj(wire.TextField("ref", t.Ref), wire.TextField("intent", t.Intent),
				wire.TextField("priority", t.Priority)).JSON()
		default:
			continue
		}
		if err := p.post(ctx, ch.URL, kind, body); err != nil {
			p.log.Info("a notification failed", "executor", c.ID, "type", ch.Type, "error", err)
		}
	}
}

func (p *pushes) post(ctx context.Context, url, kind string, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, pushTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", kind)
	resp, err := p.http.Do(ctx, client.Public, req)
	if err != nil {
		return err
	}
	if _, err = client.ReadAll(resp, 64<<10); err == nil && resp.StatusCode >= 300 {
		err = fmt.Errorf("the server answers HTTP %d", resp.StatusCode)
	}
	return err
}
