package main

import (
	"bytes"
	"encoding/json"
	"os"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
)

func TestLogFormat(t *testing.T) {
	for format, isJSON := range map[string]bool{"auto": true, "json": true, "text": false} { // a buffer is not a terminal
		var out bytes.Buffer
		a := &app{UI: terminal.UI{Err: &out}}
		a.newLogger(config.Log{Level: "info", Format: format}).Info("hello", "key", "value")
		if json.Valid(out.Bytes()) != isJSON || !strings.Contains(out.String(), "value") {
			t.Errorf("log.format %s writes %s", format, out.Bytes())
		}
	}
}

// TestLogOnTerminal: on a terminal, the format auto writes text.
func TestLogOnTerminal(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the test opens /dev/ptmx, which only Linux has")
	}
	tty, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("cannot open a terminal: %v", err)
	}
	defer tty.Close()
	a := &app{UI: terminal.UI{Err: tty}}
	before := a.newLogger(config.Log{Level: "info", Format: "text"}).Handler()
	if got := a.newLogger(config.Log{Level: "info", Format: "auto"}).Handler(); reflect.TypeOf(got) != reflect.TypeOf(before) {
		t.Errorf("on a terminal log.format auto is a %s, want a %s", reflect.TypeOf(got), reflect.TypeOf(before))
	}
}
