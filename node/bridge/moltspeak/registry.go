package moltspeak

import "github.com/labstack/echo/v4"

func (b *Bridge) mountRegistry(*echo.Echo) {}
