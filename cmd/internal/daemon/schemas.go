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

// schemas holds payloads of custom intents to the owner's JSON Schemas (AM-70).
type schemas map[wire.Intent]*jsonschema.Schema

var _ node.PayloadSchemas = schemas{}

// schemas compiles the configured files. They may refer to other files beside them, never to the network.
func (p *Process) schemas() (schemas, error) {
	out := schemas{}
	for i, s := range p.cfg.Schemas {
		compiler := jsonschema.NewCompiler()
		compiler.AssertFormat()
		compiled, err := compiler.Compile(p.src.Beside(s.File))
		if err != nil {
			return nil, exit.Fail(exit.Config, fmt.Errorf("schemas[%d]: %w", i, err))
		}
		out[wire.Intent(s.Intent)] = compiled
	}
	return out, nil
}

// Check says why a payload does not fit its intent's schema. The schema's own words are for the log: they quote
// the payload.
func (s schemas) Check(intent wire.Intent, payload wire.Value) error {
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
