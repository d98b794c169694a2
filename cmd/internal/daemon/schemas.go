package daemon

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/wire"
)

// payloadSchemas are the owner's JSON Schemas for payloads of custom intents (AM-70).
type payloadSchemas map[wire.Intent]*jsonschema.Schema

var _ node.PayloadSchemas = payloadSchemas{}

// compileSchemas compiles the configured files. Schemas may refer to other files, but never to the network.
func (p *Process) compileSchemas() (payloadSchemas, error) {
	out := payloadSchemas{}
	for i, s := range p.cfg.Schemas {
		compiler := jsonschema.NewCompiler()
		compiler.AssertFormat()
		compiled, err := compiler.Compile(p.src.ResolvePath(s.File))
		if err != nil {
			return nil, exit.Fail(exit.Config, fmt.Errorf("schemas[%d]: %w", i, err))
		}
		out[wire.Intent(s.Intent)] = compiled
	}
	return out, nil
}

// Check returns an error if a payload does not fit its schema. The error quotes the payload: it is only for the log.
func (s payloadSchemas) Check(intent wire.Intent, payload wire.Value) error {
	schema, ok := s[intent]
	if !ok {
		return nil
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(payload.JSON()))
	if err != nil {
		return fmt.Errorf("read payload: %w", err)
	}
	if err := schema.Validate(doc); err != nil {
		return errors.Join(errSchema, err)
	}
	return nil
}

var errSchema = errors.New("the payload does not fit the owner's schema of this intent")
