"""Results for people that several apps print: tables (`text`), pictures (`plots`), pages."""
