package relay

import (
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
)

// FuzzCommand: the readers of commands return for every input.
func FuzzCommand(f *testing.F) {
	for _, seed := range []string{
		`{"to":["relay"],"type":"ping"}`, `{"to":["relay"],"type":"subscribe","payload":{"agents":["a-b",7],"keywords":["x"]}}`,
		`{"to":["relay"],"payload":{"limit":1e999,"since":"x","after":"-1","query":"q"}}`, `{"to":["relay"],"payload":"text"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if fr, fault := frame.Parse(data); fault == nil && fr.IsCommand() {
			readSubscription(fr.Payload, true)
			readQuery(fr.Payload)
			if w, fault := readHistoryRequest(fr.Payload); fault == nil && (w.limit < 1 || w.limit > maxListed) {
				t.Errorf("%q asks for %d messages", data, w.limit)
			}
		}
	})
}
