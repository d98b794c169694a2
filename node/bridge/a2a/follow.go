package a2a

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/agentmesh/agentmesh/node/bridge/a2a/message"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

// Bounds of the streams on which the bridge waits for other agents. An open stream is one of the few calls that may run
// at the same time, so the bridge opens few streams, and only in the first minutes of a task.
const (
	followFor     = 15 * time.Minute // of a task; afterwards the bridge only asks about the task now and then
	followTime    = 25 * time.Second // of one stream
	followAtLeast = 3 * time.Second  // a stream that ends earlier without news does not shorten the pause before the next one
	maxFollows    = 16
	maxFollowsOf  = 2       // streams of one agent
	maxFollowed   = 4 << 20 // bytes of one stream
)

// follow waits on a stream of the agent until a task of ours has news, at most for followTime. The news itself is not
// used: GetTask has the whole task. follow reports whether the next stream may follow at once.
func (o *outbound) follow(ctx context.Context, peer remote, row *sentRow) bool {
	if !peer.Streams || time.Since(row.Started) > followFor {
		return false
	}
	leave, ok := o.follows.Enter(row.Party)
	if !ok {
		return false
	}
	defer leave()
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, followTime)
	defer cancel()
	resp, err := o.request(ctx, peer, message.SubscribeToTask, wire.Obj(wire.TextField("id", row.Task)))
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		return false // the task has ended, or the agent does not stream
	}
	lines := bufio.NewScanner(io.LimitReader(resp.Body, maxFollowed))
	lines.Buffer(nil, message.MaxBody)
	for lines.Scan() {
		if data, ok := strings.CutPrefix(lines.Text(), "data:"); ok && isNews([]byte(data), row.AskedHash) {
			return true
		}
	}
	return time.Since(began) >= followAtLeast
}

// isNews reports whether an event says that the task has ended or asks us something new. askedHash is the hash of the
// status with the question that we already have.
func isNews(event, askedHash []byte) bool {
	v, err := wire.ParseForeign(event, maxAnswerDepth, maxAnswerValues)
	if err != nil {
		return false
	}
	if result, ok := v.Get("result"); ok {
		v = result
	}
	for _, kind := range []string{"task", "statusUpdate"} {
		update, _ := v.Get(kind)
		status, _ := update.Get("status")
		if state := status.GetStr("state"); state != "" {
			digest := signing.Digest(status)
			return !message.Remote{State: a2a.TaskState(state)}.IsWaiting() && !bytes.Equal(digest[:], askedHash)
		}
	}
	return false
}
